"""Tasks: questions and their split, prompts, scorers and rewards, statistics of evaluations.

Light to import: datasets, reasoning-gym and math-verify are imported by the functions that need them.

Tested in tests/rl/tasks/test_task.py.
"""

from rl.tasks.sampler import PromptSampler
from rl.tasks.task import Question, Task, load_task

__all__ = ["PromptSampler", "Question", "Task", "load_task"]
