"""Runs the commands of `python -m cost` (`cost.cli`).

Tested in tests/cost/cli/test_main.py.
"""

from __future__ import annotations

from cost.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m cost")
