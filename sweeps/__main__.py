"""`python -m sweeps`.

Tested in tests/sweeps/cli/test_main.py.
"""

from __future__ import annotations

from sweeps.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m sweeps")
