"""How good the forecast is: real sweeps, published step times, simulated runs and a verl log, beside two baselines.

    python benchmarks/forecast.py                         # all tables, under a minute on 2 cores
    python benchmarks/forecast.py --only league           # sweep, logs, league, simulated or verl
    python benchmarks/forecast.py --data OTHER_FOLDER     # the same tables on another bank of runs

The real runs and the published step times are read from ../shared/data; tables without their data are skipped.
Baselines: the mean of the measured steps, and the last of them, times the steps ahead.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import forecast_league as league
from benchmarks import forecast_traces
from benchmarks.forecast_league import number, read_rows
from cost.forecast.hardware import Hardware
from cost.forecast.measured_run import MeasuredRun, MeasuredStep, OffStep
from cost.forecast.predict import Machine, Preemptions, SweepWork, TrialForecast, TrialWork, predict
from cost.forecast.priors import WHOLE_STEP
from cost.forecast.step_profile import fit_profile

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
NS = 10**9
TRAINER, MODEL, TASK = "trainer", "model", "task"
"""Every profile here is used for runs of its own source, so that these names never differ."""
CARD = Hardware("measured card", tflops=100.0, memory_gb_per_s=1000.0, memory_gib=80.0, interconnect_gb_per_s=600.0)


@dataclass(frozen=True)
class Result:
    """One forecast beside what happened, in seconds."""

    name: str
    actual: float
    p10: float
    p50: float
    p90: float
    baselines: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        return self.p50 / self.actual - 1.0

    @property
    def within_p90(self) -> bool:
        return self.actual <= self.p90

    @property
    def within_80_percent(self) -> bool:
        return self.p10 <= self.actual <= self.p90


def table(title: str, results: Sequence[Result], baselines: Sequence[str] = (), target: str = "") -> None:
    """Median and worst error, coverage, and the baselines' median errors."""
    if not results:
        print(f"{title}: no data")
        return
    errors = [abs(r.error) for r in results]
    beside = "".join(
        f"  {name} {_percent(statistics.median(abs(r.baselines[i] / r.actual - 1.0) for r in results))}"
        for i, name in enumerate(baselines)
    )
    print(
        f"{title:<44} n {len(results):>3}  median {_percent(statistics.median(errors))}  worst {_percent(max(errors))}"
        f"  <= P90 {_share(r.within_p90 for r in results)}  in 80 % {_share(r.within_80_percent for r in results)}"
        f" {beside}" + (f"   [{target}]" if target else "")
    )


def _percent(value: float) -> str:
    return f"{100.0 * value:5.1f} %"


def _share(values: Iterator[bool] | Sequence[bool]) -> str:
    found = list(values)
    return f"{100.0 * sum(found) / len(found):3.0f} %"


def result(name: str, actual: float, forecast: TrialForecast, baselines: tuple[float, ...] = ()) -> Result:
    wall = forecast.wall_ns
    return Result(name, actual, wall.p10 / NS, wall.p50 / NS, wall.p90 / NS, baselines)


def forecast_trial(
    runs: Sequence[MeasuredRun], work: TrialWork, preemptions: Preemptions | None = None
) -> TrialForecast:
    sweep = SweepWork(TRAINER, MODEL, TASK, Machine("here", work.cards, CARD), (work,), preemptions=preemptions)
    return predict(fit_profile(runs), sweep).trials[0]


# ---------------------------------------------------------------------------------------------------------------------
# Real runs
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealRun:
    run: MeasuredRun
    """All of its steps."""
    prompts: int
    group: int

    def first(self, steps: int) -> MeasuredRun:
        return replace(self.run, steps=self.run.steps[:steps], elapsed_ns=None)

    def seconds(self, start: int = 0, stop: int | None = None) -> float:
        return sum(s.seconds for s in self.run.steps[start:stop])

    @property
    def completions(self) -> int:
        return self.prompts * self.group


def real_runs(data: Path) -> dict[str, RealRun]:
    """Runs of the bank whose every row is one step with its time, by name."""
    found: dict[str, RealRun] = {}
    for row in read_rows(data / "grpo_runs" / "runs.csv"):
        curve = read_rows(data / "grpo_runs" / "curves" / f"{row['run_id']}.csv")
        known = all(number(c["step_seconds"]) for c in curve)
        if row["rows_are_means_of"] not in ("", "1") or not known or not row["group_size"] or len(curve) < 40:
            continue
        prompts, group, cards = int(row["prompts_per_step"]), int(row["group_size"]), int(row["cards"] or 1)
        steps = []
        for c in curve:
            phases = {
                phase: round(float(c[f"{phase}_seconds"]) * NS)
                for phase in ("rollout", "train", "other")
                if number(c[f"{phase}_seconds"])
            }
            if "rollout" not in phases:
                phases = {WHOLE_STEP: round(float(c["step_seconds"]) * NS)}
            length = number(c["response_length"])
            tokens = round(length * prompts * group) if length else None
            steps.append(MeasuredStep(int(float(c["step"])), prompts, prompts * group, cards, phases, tokens))
        elapsed = number(row["total_elapsed_seconds"])
        elapsed_ns = round(elapsed * NS) if elapsed else None
        run = MeasuredRun(row["run_id"], TRAINER, MODEL, TASK, CARD.card_type, tuple(steps), elapsed_ns=elapsed_ns)
        found[row["run_id"]] = RealRun(run, prompts, group)
    return found


def rest_of_run(name: str, real: RealRun, measured: int = 20) -> Result:
    steps = len(real.run.steps)
    cards = real.run.steps[0].cards
    work = TrialWork(
        real.run.steps[-1].step, real.prompts, real.group, cards, steps_done=real.run.steps[measured - 1].step
    )
    work = replace(work, steps=work.steps_done + steps - measured)
    ahead = steps - measured
    first = [s.seconds for s in real.run.steps[:measured]]
    return result(
        name,
        real.seconds(measured),
        forecast_trial([real.first(measured)], work),
        (statistics.fmean(first) * ahead, first[-1] * ahead),
    )


def one_run_of_each_size(data: Path) -> list[RealRun]:
    """One trial of the one-card sweep for each prompts x G."""
    sizes: dict[tuple[int, int], RealRun] = {}
    for name, real in real_runs(data).items():
        if name.startswith("02_"):
            sizes.setdefault((real.prompts, real.group), real)
    return list(sizes.values())


def other_sizes(data: Path) -> tuple[list[Result], list[Result]]:
    """Steps, and elapsed time, of a trial from two trials of other sizes; all choices of three."""
    steps_only, elapsed = [], []
    sizes = one_run_of_each_size(data)
    for (a, b), c in itertools.product(itertools.combinations(sizes, 2), sizes):
        if c in (a, b) or a.completions == b.completions:
            continue
        trial = forecast_trial([a.run, b.run], TrialWork(len(c.run.steps), c.prompts, c.group, 1))
        p50, p90 = (
            sum(getattr(x, p) for x in trial.categories if x.name in ("rollout", "train")) / NS
            for p in ("p50_ns", "p90_ns")
        )
        same = (a.seconds() + b.seconds()) / 2.0
        proportional = (a.seconds() + b.seconds()) / (a.completions + b.completions) * c.completions
        name = f"{a.prompts}x{a.group} and {b.prompts}x{b.group} to {c.prompts}x{c.group}"
        # Categories have no P10: the interval of the steps is taken as symmetric.
        steps_only.append(Result(name, c.seconds(), 2 * p50 - p90, p50, p90, (same, proportional)))
        elapsed.append(result(name, (c.run.elapsed_ns or 0) / NS, trial, (same, proportional)))
    return steps_only, elapsed


def from_one_size(data: Path) -> Iterator[Result]:
    """Elapsed time of a trial from one trial of another size: its lines come from priors."""
    for a, c in itertools.permutations(one_run_of_each_size(data), 2):
        if a.completions != c.completions:
            trial = forecast_trial([a.run], TrialWork(len(c.run.steps), c.prompts, c.group, 1))
            proportional = a.seconds() / a.completions * c.completions
            name = f"{a.prompts}x{a.group} to {c.prompts}x{c.group}"
            yield result(name, (c.run.elapsed_ns or 0) / NS, trial, (a.seconds(), proportional))


def sweep_table(data: Path) -> None:
    """The one-card sweep of 17 trials."""
    runs = {name: real for name, real in real_runs(data).items() if name.startswith("02_")}
    if not runs:
        return
    print("\nOne-card sweep of 17 trials (source 02)")
    baselines = ("mean step", "last step")
    table(
        "rest of the trial, from its first 20 steps",
        [rest_of_run(name, real) for name, real in runs.items()],
        baselines,
        "median 5 %, worst 10 %",
    )
    steps_only, elapsed = other_sizes(data)
    scaled = ("same steps", "per completion")
    table("steps of another prompts x G, from two trials", steps_only, scaled, "5 %")
    table("elapsed of another prompts x G, from two", elapsed, scaled, "5 %")
    table("elapsed of another prompts x G, from one", list(from_one_size(data)), scaled)
    same = [real for real in runs.values() if (real.prompts, real.group) == (8, 8) and "mu" not in real.run.name]
    again = [
        result(
            f"{a.run.name} to {b.run.name}",
            (b.run.elapsed_ns or 0) / NS,
            forecast_trial([a.run], TrialWork(len(b.run.steps), 8, 8, 1)),
            (a.seconds(), a.run.steps[-1].seconds * len(b.run.steps)),
        )
        for a, b in itertools.permutations(same, 2)
    ]
    table("elapsed of another trial of the same size", again, baselines, "5 %")


def logs_table(data: Path) -> None:
    """Every other run of the bank with a time for each step."""
    runs = {name: real for name, real in real_runs(data).items() if not name.startswith("02_")}
    if not runs:
        return
    print("\nOther public runs with one row a step: the rest of the run, from its first 20 steps")
    by_source: dict[str, list[Result]] = {}
    for name, real in runs.items():
        by_source.setdefault(name[:2], []).append(rest_of_run(name, real))
    for source, results in sorted(by_source.items()):
        table(f"source {source}", results, ("mean step", "last step"))
    table("all", [r for results in by_source.values() for r in results], ("mean step", "last step"))


# ---------------------------------------------------------------------------------------------------------------------
# verl log
# ---------------------------------------------------------------------------------------------------------------------

_VERL_PHASES = {
    "timing/gen": "rollout",
    "timing/ref": "logprob",
    "timing/values": "logprob",
    "timing/adv": "other",
    "timing/update_critic": "train",
    "timing/update_actor": "train",
}


def verl_run(path: Path) -> tuple[tuple[MeasuredStep, ...], dict[int, int]]:
    """Steps of the log (its step 0 is our 1) and the nanoseconds of the evaluation after each that has one."""
    steps, evaluations = [], {}
    for line in path.read_text(errors="replace").splitlines():
        found = re.search(r"step:(\d+) - ", line)
        values = {name: float(value) for name, value in re.findall(r"([\w/()-]+):(-?[\d.]+)", line)}
        if found is None or "timing/gen" not in values:
            continue
        step = int(found[1]) + 1
        phases: dict[str, int] = {}
        for name, phase in _VERL_PHASES.items():
            phases[phase] = phases.get(phase, 0) + round(values.get(name, 0.0) * NS)
        tokens = round(values["response_length/mean"] * 256)
        steps.append(MeasuredStep(step, 256, 256, 1, phases, tokens))
        if "timing/testing" in values:
            evaluations[step] = round(values["timing/testing"] * NS)
    return tuple(steps), evaluations


def verl_result(path: Path, measured: int) -> Result:
    """All timed seconds after the first `measured` steps, evaluations included."""
    steps, evaluations = verl_run(path)
    seen = tuple(OffStep("evaluation", ns) for step, ns in evaluations.items() if step <= measured)
    run = MeasuredRun("verl", TRAINER, MODEL, TASK, CARD.card_type, steps[:measured], seen)
    ahead = sum(step > measured for step in evaluations)
    trial = forecast_trial([run], TrialWork(len(steps), 256, 1, 1, evaluations=ahead, steps_done=measured))
    actual = sum(s.seconds for s in steps[measured:])
    actual += sum(ns for step, ns in evaluations.items() if step > measured) / NS
    first = [s.seconds for s in steps[:measured]]
    left = len(steps) - measured
    return result("verl", actual, trial, (statistics.fmean(first) * left, first[-1] * left))


def verl_table(data: Path) -> None:
    path = data / "verl_logs" / "qwen2.5-0.5b-gsm8k-ppo.log"
    if not path.exists():
        print(f"\nverl: skipped, {path} is absent")
        return
    print("\nverl log of 435 steps, evaluation after every 10th: from the first steps to all timed seconds")
    for measured in (20, 50, 100):
        table(f"from steps 1 to {measured}", [verl_result(path, measured)], ("mean step", "last step"))


# ---------------------------------------------------------------------------------------------------------------------
# Simulated runs
# ---------------------------------------------------------------------------------------------------------------------


def simulated_result(trace: forecast_traces.Trace, measured: int = 20) -> Result:
    """A 200-step trial on the same machine, forecast from a 20-step smoke with start, evaluation and checkpoint."""
    scenario = trace.scenario
    cards, completions = scenario.engine.cards, scenario.prompts * scenario.group
    steps = tuple(
        MeasuredStep(
            i,
            scenario.prompts,
            completions,
            cards,
            {phase: round(s[phase] * NS) for phase in ("rollout", "train", "sync")},
            round(s["tokens"]),
        )
        for i, s in enumerate(trace.steps[:measured], start=1)
    )
    off_steps = (
        OffStep("start", round(trace.start * NS)),
        OffStep("evaluation", round(trace.evaluations[0] * NS)),
        OffStep("checkpoint", round(trace.checkpoints[0] * NS)),
    )
    run = MeasuredRun("smoke", TRAINER, MODEL, TASK, CARD.card_type, steps, off_steps)
    work = TrialWork(
        scenario.steps,
        scenario.prompts,
        scenario.group,
        cards,
        evaluations=1 + scenario.steps // scenario.evaluate_every,
        checkpoints=scenario.steps // scenario.checkpoint_every,
        max_completion_tokens=scenario.length_limit,
    )
    rate = scenario.preemptions_per_hour
    preemptions = Preemptions(rate, scenario.checkpoint_every, scenario.recovery) if rate else None
    first = [s.seconds for s in steps]
    return result(
        scenario.engine.name,
        trace.elapsed,
        forecast_trial([run], work, preemptions),
        (statistics.fmean(first) * scenario.steps, first[-1] * scenario.steps),
    )


def simulated_table(_: Path) -> None:
    print("\nSimulated runs of 200 steps with known truth, from their first 20: five machines, 300 runs")
    results: dict[str, list[Result]] = {kind: [] for kind in forecast_traces.KINDS}
    by_engine: dict[str, list[Result]] = {}
    for scenario in forecast_traces.scenarios():
        found = simulated_result(forecast_traces.simulate(scenario))
        results[scenario.kind].append(found)
        by_engine.setdefault(found.name, []).append(found)
    targets = {"stable": "median 5 %", "length drift": "median 10 %"}
    for kind, found in results.items():
        table(kind, found, ("mean step", "last step"), targets.get(kind, ""))
    for engine, found in by_engine.items():
        table(f"  {engine}", found, ("mean step", "last step"))
    table("all", [r for found in results.values() for r in found], ("mean step", "last step"), "<= P90 in 85 to 95 %")


# ---------------------------------------------------------------------------------------------------------------------
# Published step times
# ---------------------------------------------------------------------------------------------------------------------


def league_results(
    rows: Sequence[league.Published],
) -> Iterator[tuple[league.Published, league.Published, Result]]:
    """Each row beside the row that it is predicted from, with priors estimated without its set."""
    for base, row in league.league_pairs(rows):
        step = league.predict_row(base, row, league.refit([r for r in rows if r.pair != row.pair]))
        ideal = base.step * (row.completions / base.completions) / (row.cards / base.cards)
        name = f"{row.pair} {base.row}->{row.row}"
        yield base, row, Result(name, row.step, step.p10 / NS, step.p50 / NS, step.p90 / NS, (base.step, ideal))


def league_table(data: Path) -> None:
    rows = league.published(data)
    print("\nPublished step times: each row from the first of its set, with priors of the other sets")
    fitted = league.refit(rows)
    print(
        f"priors of all sets: serial share {fitted.serial_share:.2f}, asynchronous step {fitted.async_step_share:.2f}, "
        f"asynchronous sampling {fitted.async_rollout_share:.2f}, FLOP/s exponent {fitted.flops_exponent:.2f}, "
        f"half work {fitted.rollout_half_work:.0f} (sampling) and {fitted.train_half_work:.1f} (training)"
    )
    results: dict[str, list[Result]] = {}
    for base, row, found in league_results(rows):
        results.setdefault(_comparison(base, row), []).append(found)
        print(
            f"  {found.name:<40} {base.cards:>3}->{row.cards:<3} {row.asynchronous or 'sync':<12} "
            f"printed {found.actual:7.2f}"
            f"  P10 {found.p10:7.2f}  P50 {found.p50:7.2f}  P90 {found.p90:7.2f}  error {100 * found.error:+6.1f} %"
        )
    baselines = ("same seconds", "ideal speed-up")
    everything = [r for found in results.values() for r in found]
    table("all", everything, baselines, "median 15 %, in 80 % 70 to 90 %")
    for comparison, found in results.items():
        table(f"  {comparison}", found, baselines)
    signs = list(league.cost_signs(rows))
    right = sum(predicted == actual for _, predicted, actual in signs)
    wrong = ", ".join(name for name, predicted, actual in signs if predicted != actual)
    print(
        f"more cards, more money per step: sign right in {right} of {len(signs)}   [9 of 10]   wrong: {wrong or 'none'}"
    )


def _comparison(base: league.Published, row: league.Published) -> str:
    if base.trainer_only:
        return "other card type, weak scaling"
    if base.asynchronous != row.asynchronous:
        return "synchronous to asynchronous"
    return "other number of cards" if base.cards != row.cards else "other size or software"


TABLES: dict[str, Callable[[Path], None]] = {
    "sweep": sweep_table,
    "logs": logs_table,
    "league": league_table,
    "simulated": simulated_table,
    "verl": verl_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with grpo_runs/ and verl_logs/")
    parser.add_argument("--only", choices=list(TABLES), help="one table")
    arguments = parser.parse_args()
    real = arguments.data / "grpo_runs"
    for name, print_table in TABLES.items():
        if arguments.only not in (None, name):
            continue
        if name in ("sweep", "logs", "league") and not real.exists():
            print(f"\n{name}: skipped, {real} is absent")
            continue
        print_table(arguments.data)


if __name__ == "__main__":
    main()
