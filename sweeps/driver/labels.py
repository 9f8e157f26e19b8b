"""Labels of an attempt in the ledger: how a trial's stage, parameters and accuracy reach the cost report."""

from __future__ import annotations

from collections.abc import Mapping

from rl.spec import EvalReport
from rl.tasks.evaluation import average_at_k
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import TrialState
from sweeps.planning.plan import PlannedTrial


def start_labels(cfg: SweepConfig, planned: PlannedTrial, forecast: Mapping[str, str]) -> dict[str, str]:
    """The labels of an attempt when it starts. `forecast`: what its trial is expected to cost, as labels."""
    return {
        "stage": cfg.stage.name,
        "state": str(TrialState.RUNNING),
        "prompts_per_step": str(planned.prompts_per_step),
        "group_size": str(planned.group_size),
        "lr": f"{planned.lr:g}",
        "lr_scaling": ",".join(planned.names),
        "seed": str(planned.seed),
        "varied": planned.varied,
        "trainer": cfg.trainer.name,
        **forecast,
    }


def accuracy_labels(report: EvalReport) -> dict[str, str]:
    """Accuracy of an evaluation with its 95 % interval."""
    estimate = average_at_k(report.results)
    return {
        "acc": f"{estimate.value:.4f}",
        "acc_ci_low": f"{estimate.low:.4f}",
        "acc_ci_high": f"{estimate.high:.4f}",
    }
