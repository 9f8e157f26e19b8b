"""Logs of other trainers, read into our curves: any format, no heavy imports, nothing guessed.

    >>> from rl.trainers.logs import read_run
    >>> run = read_run("train.log")                 # TRL, verl, slime, OpenRLHF, prime-rl, NeMo-RL, JSON, CSV, ...
    >>> run.curve("reward")                         # [(1, 0.25), (2, 0.31), ...] along the steps that count
    >>> [note.text for note in run.notes]           # what is missing, restarted, cut, or 0 by construction

`names` has the table of metric names; docs/curves/names.md is generated from it.

Tested in tests/rl/trainers/logs/test_public_logs.py.
"""

from rl.trainers.logs.names import TRAINERS
from rl.trainers.logs.read import read_bytes, read_run
from rl.trainers.logs.run import Evaluation, Facts, ImportedRun, LogError, Note, Row

__all__ = ["TRAINERS", "Evaluation", "Facts", "ImportedRun", "LogError", "Note", "Row", "read_bytes", "read_run"]
