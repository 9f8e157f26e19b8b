"""Runs one trial: everything that trains a model with GRPO. Does not depend on hydra, mlflow, `cost` or `sweeps`.

Imports between the sub-packages go in one direction. This folder has the contract (`spec`, `messages`, `codec`) and the
building blocks (losses, advantages, curves, the policy). `tasks` and `rollout` use this folder only, `models` uses
`tasks`, and `trainers` use all of them.
"""
