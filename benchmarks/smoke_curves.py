"""Plots the curves of the newest smoke stage under a root folder, and prints its accuracies and step times.

    python sweep.py +stage=smoke
    python benchmarks/smoke_curves.py --root runs --out docs/img/smoke.png

The README shows the plot. Run both commands on one machine: the second prints the name of the machine's processor.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from pathlib import Path

from cost.ledger.ledger import Ledger
from rl.tasks.evaluation import average_at_k
from sweeps.journal.journal import SweepRecord, load, sweep_ids
from sweeps.journal.metrics import step_metrics
from sweeps.journal.trial_reports import TrialReports, trial_reports


def newest_smoke(root: Path) -> tuple[SweepRecord, dict[str, TrialReports]]:
    """The newest finished smoke that was not simulated, and the reports of its trials by trial id."""
    with Ledger.open(root / "ledger.db", create=False, read_only=True) as ledger:
        for sweep_id in reversed(sweep_ids(ledger)):
            record = load(ledger, sweep_id)
            if record.stage == "smoke" and not record.simulated and not record.unfinished:
                return record, trial_reports(ledger, sweep_id)
    raise SystemExit(f"no finished smoke under {root}: run `python sweep.py +stage=smoke` first")


def print_figures(record: SweepRecord, trial_reports: dict[str, TrialReports]) -> None:
    print(f"{record.sweep_id} on {platform.processor() or platform.machine()}, model {record.config['model']['kind']}")
    for trial in record.trials.values():
        evaluations = trial_reports[trial.trial_id].evaluations
        before, after = evaluations[0], evaluations[max(evaluations)]
        a, b = average_at_k(before.results), average_at_k(after.results)
        seconds = statistics.median(s.wall_ns / 1e9 for s in trial_reports[trial.trial_id].steps.values())
        print(
            f"  {trial.planned.label:<16} lr {trial.planned.lr:.1e}  {seconds:5.1f} s per step (median)  "
            f"acc {a.value:.2f} [{a.low:.2f}, {a.high:.2f}] -> {b.value:.2f} [{b.low:.2f}, {b.high:.2f}]"
        )


def plot(record: SweepRecord, trial_reports: dict[str, TrialReports], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [("reward", "reward"), ("entropy", "entropy (nats)"), ("clip_frac", "clip_frac, last update")]
    figure, axes = plt.subplots(1, len(shown), figsize=(11, 3.5), layout="constrained")
    for axis, (name, title) in zip(axes, shown, strict=True):
        for trial in record.trials.values():
            rows = [(n, step_metrics(s, 1).get(name)) for n, s in sorted(trial_reports[trial.trial_id].steps.items())]
            defined = [(n, v) for n, v in rows if v is not None]
            label = f"{trial.planned.label}, lr {trial.planned.lr:.0e}"
            axis.plot([n for n, _ in defined], [v for _, v in defined], marker=".", linewidth=1.2, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("docs/img/smoke.png"))
    arguments = parser.parse_args()
    record, trial_reports = newest_smoke(arguments.root)
    print_figures(record, trial_reports)
    plot(record, trial_reports, arguments.out)
    print(f"plot written to {arguments.out}")


if __name__ == "__main__":
    main()
