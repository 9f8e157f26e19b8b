"""The stop rule and the diagnosis on real GRPO runs with known ends, beside published fixed thresholds.

    python benchmarks/gates_on_trial.py                    # the bank at ../shared/data/grpo_runs, under a minute
    python benchmarks/gates_on_trial.py --data FOLDER      # another bank of the same layout
    python benchmarks/gates_on_trial.py --runs             # also one line per run

Every run is read row by row, as while it trains; a stop counts at the row that triggers it. "Saved" is the share of all
steps of the dead runs that come after the stop; "of the savable" counts only the steps after death, which is the last
row with at least a fifth of the run's best window, known afterwards.

Leave one source out: the limits of the stop rule are chosen on all other sources and tried on the one left out. Where
no other source has a dead run there is nothing to choose by, and the defaults are used. Runs of one source are not
independent, so the arms of a source with dead runs are left out one by one as well.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.grpo_bank import BANK, BankRun, read_bank
from sweeps.protocol.diagnosis.diagnose import diagnose
from sweeps.protocol.diagnosis.limits import DEFAULT_LIMITS, Limits
from sweeps.protocol.diagnosis.reward import collapse_rule
from sweeps.protocol.gate_rules import Constant, Direction, Rule, Severity, TimesOwn, first_stop
from sweeps.protocol.windows import windows

LABELS_THAT_NAME: dict[str, tuple[str, ...]] = {
    "dead": ("reward_collapse",),
    "degraded": ("evaluation_gap", "evaluation_fell", "reward_decline", "length_explosion", "entropy_collapse"),
    "hacked": ("reward_hacking",),
    "diverged_kl": ("kl_runaway", "learning_rate_too_high"),
    "truncated": ("limit_too_short", "length_explosion"),
    "length_explosion": ("length_explosion", "limit_too_short"),
    "flat": ("no_learning", "learning_rate_too_low", "dead_groups"),
}
"""The findings that name a label."""
CHOICES = tuple(itertools.product((15, 20, 25, 30, 40), (0.1, 0.15, 0.2, 0.25, 0.3), (3.0, 5.0, 7.0)))
"""Window steps, share of the best window, noise: what a fold may choose from."""

Stopper = Callable[[BankRun], int | None]
"""The step at which a run is stopped; None: never."""


def by_rules(*rules: Rule) -> Stopper:
    def stop(run: BankRun) -> int | None:
        result = first_stop(rules, run.curves)
        return result.last_step if result is not None else None

    return stop


def with_limits(limits: Limits) -> Stopper:
    return by_rules(collapse_rule(limits))


def fixed(name: str, curve: str, direction: Direction, limit: Constant | TimesOwn) -> Stopper:
    """A published rule, over windows of 20 steps like ours."""
    return by_rules(Rule(name, curve, "mean", 20, 0, direction, limit, Severity.STOP, "", "", ""))


FIXED: dict[str, Stopper] = {
    "entropy under 1": fixed("", "entropy", "below", Constant(1.0)),
    "entropy under 0.1": fixed("", "entropy", "below", Constant(0.1)),
    "truncated over half": fixed("", "truncated_frac", "above", Constant(0.5)),
    "reward under its start": fixed("", "reward", "below", TimesOwn(1.0, "first")),
    "reward under half its start": fixed("", "reward", "below", TimesOwn(0.5, "first")),
}


@dataclass(frozen=True)
class Outcome:
    """What a stopper did to a set of runs."""

    dead: int
    dead_stopped: int
    healthy: int
    healthy_stopped: int
    recovering: int
    recovering_stopped: int
    dead_steps: int
    saved: int
    savable: int
    others_stopped: tuple[str, ...]

    @property
    def saved_share(self) -> float | None:
        return self.saved / self.dead_steps if self.dead_steps else None

    @property
    def savable_share(self) -> float | None:
        return self.saved / self.savable if self.savable else None


def outcome(runs: Iterable[BankRun], stop: Stopper) -> Outcome:
    counts: Counter[str] = Counter()
    others = []
    for run in runs:
        at = stop(run)
        counts[run.label] += 1
        counts[f"{run.label} stopped"] += at is not None
        if run.recovers:
            counts["recovering"] += 1
            counts["recovering stopped"] += at is not None
        if run.label == "dead":
            counts["steps"] += run.curves.last_step
            counts["saved"] += run.curves.last_step - at if at is not None else 0
            counts["savable"] += run.curves.last_step - death(run)
        elif run.label != "healthy" and at is not None:
            others.append(f"{run.run_id} ({run.label}) at {at}")
    return Outcome(
        counts["dead"],
        counts["dead stopped"],
        counts["healthy"],
        counts["healthy stopped"],
        counts["recovering"],
        counts["recovering stopped"],
        counts["steps"],
        counts["saved"],
        counts["savable"],
        tuple(others),
    )


def death(run: BankRun) -> int:
    """The last step of the last row with at least a fifth of the run's best window: no rule could know it then."""
    best = max(w.mean for w in windows(run.curves, "reward", 20))
    rows = zip(run.curves.steps, run.curves.values("reward"), strict=True)
    return max((step for step, reward in rows if reward is not None and reward >= best / 5.0), default=0)


def choose(stops: Stops, runs: Sequence[BankRun]) -> Limits:
    """The limits that save most steps of dead runs, and stop no other run.

    A choice needs a margin: with a window 5 steps shorter and 5 % more of the best window it stops no healthy and no
    recovering run either. At a tie the limits nearest to the defaults are taken.
    """
    if not any(run.label == "dead" for run in runs):
        return DEFAULT_LIMITS

    def merit(limits: Limits) -> tuple[float, ...]:
        found = outcome(runs, stops.under(limits))
        eager = outcome(
            runs, stops.under(replace(limits, window_steps=limits.window_steps - 5, collapse=limits.collapse + 0.05))
        )
        distance = abs(limits.window_steps - 20) / 20 + abs(limits.collapse - 0.2) / 0.2 + abs(limits.clear - 5.0) / 5.0
        wrong = found.healthy_stopped + eager.healthy_stopped + found.recovering_stopped + eager.recovering_stopped
        return (-wrong, found.dead_stopped, found.saved, -distance)

    options = (
        replace(DEFAULT_LIMITS, window_steps=steps, collapse=share, clear=noise) for steps, share, noise in CHOICES
    )
    return max(options, key=merit)


class Stops:
    """The stop rule under any limits, each run read once per limits."""

    def __init__(self) -> None:
        self._found: dict[tuple[Limits, str], int | None] = {}

    def under(self, limits: Limits) -> Stopper:
        stop = with_limits(limits)

        def remembered(run: BankRun) -> int | None:
            key = (limits, run.run_id)
            if key not in self._found:
                self._found[key] = stop(run)
            return self._found[key]

        return remembered


def line(name: str, found: Outcome) -> str:
    saved = "-" if found.saved_share is None else f"{found.saved_share:.0%}"
    savable = "-" if found.savable_share is None else f"{found.savable_share:.0%}"
    return (
        f"{name:<44}{found.dead_stopped:>3} of {found.dead:<3}{found.healthy_stopped:>4} of {found.healthy:<4}"
        f"{found.recovering - found.recovering_stopped:>4} of {found.recovering:<3}{saved:>7}{savable:>9}"
    )


HEADER = f"{'':<44}{'dead':^9}{'healthy':^11}{'recovering':^11}{'saved':>6}{'of the':>9}\n" + (
    f"{'':<44}{'stopped':^9}{'stopped':^11}{'kept':^11}{'':>6}{'savable':>9}"
)


def print_rules(runs: Sequence[BankRun]) -> None:
    print("Stop rules on all runs\n" + HEADER)
    ours = outcome(runs, with_limits(DEFAULT_LIMITS))
    print(line("reward under 20 % of its best (the default)", ours))
    for name, stop in FIXED.items():
        print(line(f"fixed: {name}", outcome(runs, stop)))
    print(f"the default also stops: {', '.join(ours.others_stopped) or 'no other run'}")
    print("[targets: dead at least 90 %, healthy at most 5 %, every recovering run kept, saved at least 50 %]\n")


def print_left_out(runs: Sequence[BankRun], stops: Stops) -> None:
    print("Limits chosen without the runs they are tried on\n" + HEADER)
    total: dict[str, int | None] = {}
    for source in sorted({run.source for run in runs}):
        limits = choose(stops, [run for run in runs if run.source != source])
        here = [run for run in runs if run.source == source]
        total |= {run.run_id: stops.under(limits)(run) for run in here}
        print(line(f"without source {source}: {_described(limits)}", outcome(here, stops.under(limits))))
    print(line("all sources together", outcome(runs, lambda run: total[run.run_id])))
    for source in sorted({run.source for run in runs if run.label == "dead"}):
        of_source = [run for run in runs if run.source == source]
        for arm in sorted({run.arm for run in of_source}):
            limits = choose(stops, [run for run in runs if run.arm != arm])
            here = [run for run in of_source if run.arm == arm]
            total |= {run.run_id: stops.under(limits)(run) for run in here}
            if any(run.label == "dead" for run in here):
                print(line(f"without {arm}: {_described(limits)}", outcome(here, stops.under(limits))))
        print(line(f"all arms of source {source} together", outcome(of_source, lambda run: total[run.run_id])))  # noqa: B023 - called at once
    print()


def _described(limits: Limits) -> str:
    return f"{limits.window_steps} steps, {limits.collapse:.0%}, {limits.clear:g} noise"


def print_sensitivity(runs: Sequence[BankRun], stops: Stops) -> None:
    print("Sensitivity of the stop rule to each of its four limits\n" + HEADER)
    variations: dict[str, Sequence[float]] = {
        "window_steps": (10, 15, 20, 25, 30, 40),
        "window_completions": (0, 64, 128, 256),
        "collapse": (0.1, 0.15, 0.2, 0.25, 0.3, 0.4),
        "clear": (0, 3, 5, 7, 10),
    }
    for name, values in variations.items():
        for value in values:
            limits = replace(DEFAULT_LIMITS, **{name: value})
            default = " (default)" if getattr(DEFAULT_LIMITS, name) == value else ""
            print(line(f"{name} {value:g}{default}", outcome(runs, stops.under(limits))))
    print()


def named(run: BankRun) -> tuple[str, ...]:
    """Findings that ask for action."""
    return tuple(f.name for f in diagnose(run.curves).findings if f.severity is not Severity.NOTE)


def print_named(runs: Sequence[BankRun], each: bool) -> None:
    print(
        "Named by the diagnosis at the end of the run\n"
        + f"{'label':<18}{'runs':>5}{'named':>7}   findings in these runs"
    )
    found = {run.run_id: named(run) for run in runs}
    for label in (*LABELS_THAT_NAME, "healthy", "too_short", "unknown"):
        here = [run for run in runs if run.label == label]
        if not here:
            continue
        right = LABELS_THAT_NAME.get(label)
        hits = "" if right is None else str(sum(bool(set(found[run.run_id]) & set(right)) for run in here))
        all_names = Counter(name for run in here for name in found[run.run_id])
        print(f"{label:<18}{len(here):>5}{hits:>7}   {', '.join(f'{n} {c}' for n, c in all_names.most_common())}")
    alarmed = [run.run_id for run in runs if run.label == "healthy" and found[run.run_id]]
    print(f"healthy runs with any finding that asks for action: {len(alarmed)}: {', '.join(alarmed)}")
    if each:
        for run in runs:
            diagnosis = diagnose(run.curves)
            print(f"\n{run.run_id} [{run.label}] {diagnosis.verdict}")
            for finding in diagnosis.findings:
                print(f"   {finding.severity:<6}{finding.name} since step {finding.first_step}: {finding.summary}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=BANK, help="a bank of runs: runs.csv, evals.csv, curves/, extra/")
    parser.add_argument("--runs", action="store_true", help="print the diagnosis of every run")
    args = parser.parse_args()
    if not (args.data / "runs.csv").exists():
        parser.exit(2, f"there is no bank of runs in {args.data}: runs.csv is missing\n")
    runs = read_bank(args.data)
    labels = Counter(run.label for run in runs)
    print(f"{len(runs)} runs of {len({r.source for r in runs})} sources: {dict(labels.most_common())}\n")
    print_rules(runs)
    stops = Stops()
    print_left_out(runs, stops)
    print_sensitivity(runs, stops)
    print_named(runs, args.runs)


if __name__ == "__main__":
    main()
