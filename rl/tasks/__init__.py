"""What is asked and how answers are judged: questions, their split, prompts, rewards, statistics of evaluations.

Light to import: datasets, reasoning-gym and math-verify are loaded by the functions that need them.
"""

from rl.tasks.sampler import PromptSampler
from rl.tasks.task import Question, Task, load_task

__all__ = ["PromptSampler", "Question", "Task", "load_task"]
