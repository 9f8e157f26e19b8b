"""`python -m rl.models smollm2_135m [CACHE_DIR]`: convert a model into the cache before a run needs it.

Tested in tests/rl/models/test_smollm2.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rl.models import smollm2
from rl.spec import ConfigurationError


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 done, 2 wrong arguments or a missing package."""
    if not arguments or arguments[0] != "smollm2_135m" or len(arguments) > 2:
        print("usage: python -m rl.models smollm2_135m [CACHE_DIR, default runs/cache]", file=sys.stderr)
        return 2
    cache_dir = Path(arguments[1] if len(arguments) == 2 else "runs/cache")
    try:
        folder = smollm2.prepare(cache_dir, lambda line: print(f"smollm2_135m: {line}", flush=True))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"smollm2_135m: ready in {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
