"""FSDP2: weights, gradients and optimiser state of a policy, sharded over the ranks of the default process group.

Tested in tests/rl/parallel/test_updates.py.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl.policy import Policy


def shard(policy: Policy) -> None:
    """Shard `policy` in place. All ranks must call this with equal weights, and before the optimiser is made.

    Gradients are summed over ranks, not averaged, since losses are shares of sums. From then on, all ranks must run the
    same number of forward and backward passes.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    model: Any = policy.model
    backbone: Any = policy.backbone
    mesh = init_device_mesh(policy.device.type, (dist.get_world_size(),))
    for layer in backbone.layers:
        fully_shard(layer, mesh=mesh)
    # The root stays gathered after its forward pass: the projection to the vocabulary is used without a module call.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    # `Policy.forward` calls parts of the model. FSDP gathers and frees weights around calls of this method.
    model.sharded_forward = _forward
    register_fsdp_forward_method(model, "sharded_forward")


def _forward(policy: Policy, batch: Any, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs, entropy = policy.forward_on_whole_weights(batch, temperature)
    return logprobs.clone(), entropy  # FSDP's hook on the output needs a tensor that is not a view
