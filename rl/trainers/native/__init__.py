"""The native GRPO trainer: `trainer` (one attempt), `loop` (its steps), `learner` (its optimiser updates)."""
