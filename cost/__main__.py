"""`python -m cost`: the books from the command line. Every rule is in the modules that the commands call."""

from __future__ import annotations

from cost.cli.main import app

if __name__ == "__main__":
    app(prog_name="python -m cost")
