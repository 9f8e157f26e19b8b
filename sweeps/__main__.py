"""`python -m sweeps`."""

from __future__ import annotations

from sweeps.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m sweeps")
