"""Learner ranks: one policy trained by several processes of one machine, with DDP or FSDP2.

`processes` starts the ranks, `rank` joins their process group, and `shard` shards a policy (FSDP2). The native trainer
does not use them yet: it runs on one card.

Tested in tests/rl/parallel.
"""
