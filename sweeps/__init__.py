"""Many runs, in stages: the only package that knows both `rl` and `cost`.

Importing it switches off the telemetry of the libraries that are used, here and in the processes that are started: a
machine that handles costs sends nothing about itself unless the user asks for it. A variable that is set already is
kept.

Tested in tests/e2e/test_interrupt.py.
"""

import os

NO_TELEMETRY = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

for _name, _value in NO_TELEMETRY.items():
    os.environ.setdefault(_name, _value)
