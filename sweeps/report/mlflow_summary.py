"""What the parent run of a sweep shows in MLflow: its best accuracy, the accuracy before, its trials and its cost.

Tested in tests/sweeps/report/test_mlflow_sync.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeps.journal.journal import SweepRecord, TrialState, load
from sweeps.search.best import best_completed, start_accuracy

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

UNPRICED = "UNPRICED"


@dataclass(frozen=True)
class RunSummary:
    """The metrics and tags of the parent run."""

    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def run_summary(ledger: Ledger, sweep_id: str, at_ns: int) -> RunSummary:
    """The summary of a sweep, with its cost up to a moment. Unknown values are left out."""
    record = load(ledger, sweep_id)
    costs, tags = _cost(ledger, sweep_id, at_ns)
    return RunSummary(_accuracies(record) | _counts(record) | costs, tags)


def _accuracies(record: SweepRecord) -> dict[str, float]:
    found = best_completed(record)
    if found is None:
        return {}
    accuracy, trials = found
    start = start_accuracy(trials)
    return {"best_acc": accuracy} | ({} if start is None else {"start_acc": start})


def _counts(record: SweepRecord) -> dict[str, float]:
    states = [trial.state for trial in record.trials.values()]
    return {"trials": len(states), "trials_completed": states.count(TrialState.COMPLETED)}


def _cost(ledger: Ledger, sweep_id: str, at_ns: int) -> tuple[dict[str, float], dict[str, str]]:
    from cost.prices.book import PriceBook, PriceError
    from cost.reports.by_trial import sweep_report
    from sweeps.config.overrides import CONF_DIR

    try:
        report = sweep_report(ledger, PriceBook.load(CONF_DIR / "pricing"), sweep_id, at_ns)
    except PriceError:
        return {}, {"currency": UNPRICED}
    if report.unpriced or len(report.currencies) != 1:
        return {}, {"currency": UNPRICED if report.unpriced else ", ".join(report.currencies)}
    return {"cost": report.total_pico / 1e12}, {"currency": report.currency}  # a number to plot, not an amount
