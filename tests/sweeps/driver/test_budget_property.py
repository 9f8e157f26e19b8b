"""However many trials run at once, at whatever price and pace: a sweep costs no more than its limit, but for the time
in which it cannot yet have heard of it. The bill is made by an oracle that knows only from when to when the machine was
held, what a card costs, and how the provider rounds.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost.budgets.reader import BudgetReader
from cost.close.check import run_checks
from cost.money import Money
from rl.spec import CheckpointWritten, EvalReport, Started, StepReport
from sweeps.config.types import SweepConfig
from sweeps.journal.event_codec import messages_in
from tests.sweeps.paid import PaidSweep, a_book, a_config, a_paid_sweep

HEARTBEAT_SECONDS = 10
PICO = 10**12


@dataclasses.dataclass(frozen=True)
class Case:
    cards: int
    cards_per_trial: int
    trials: int
    max_concurrent: int
    cents_per_hour: int
    granularity_s: int
    ahead: bool
    limit_share: float
    bound_cents: int | None
    startup: float
    step: float
    evaluation: float
    checkpoint: float
    noise: float
    checkpoint_every: int
    preempt_at: int


CASES = st.builds(
    Case,
    cards=st.integers(1, 4),
    cards_per_trial=st.integers(1, 2),
    trials=st.integers(1, 6),
    max_concurrent=st.integers(0, 3),
    cents_per_hour=st.integers(1, 5000),
    granularity_s=st.sampled_from([1, 60, 900, 3600]),
    ahead=st.booleans(),
    limit_share=st.floats(0.02, 1.5),
    bound_cents=st.none() | st.integers(1, 200),
    startup=st.floats(0, 120),
    step=st.floats(0.1, 60),
    evaluation=st.floats(0, 60),
    checkpoint=st.floats(0, 60),
    noise=st.floats(0, 0.5),
    checkpoint_every=st.integers(1, 10),
    preempt_at=st.sampled_from([0, 0, 3]),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> SweepConfig:
    return a_config(tmp_path_factory.mktemp("base"), "search.lr_scaling=[hold]", "search.prompts_per_step=[2]")


def configured(base: SweepConfig, case: Case, folder: Path) -> SweepConfig:
    simulated = dataclasses.replace(
        base.trainer.simulated,
        startup_seconds=case.startup,
        seconds_per_step=case.step,
        seconds_per_completion=0.0,
        seconds_per_evaluation=case.evaluation,
        seconds_per_checkpoint=case.checkpoint,
        noise_frac=case.noise,
        preempt_at_step=case.preempt_at,
    )
    trainer = dataclasses.replace(base.trainer, simulated=simulated, checkpoint_every_steps=case.checkpoint_every)
    search = dataclasses.replace(
        base.search,
        seeds=tuple(range(case.trials)),
        cards_per_trial=min(case.cards, case.cards_per_trial),
        max_concurrent=case.max_concurrent,
    )
    one_trial = case.startup + 10 * case.step + 2 * case.evaluation + 2 * case.checkpoint
    whole = one_trial * case.trials * case.cards * case.cents_per_hour / 3600
    limit = Money.parse(f"{max(0.01, whole * case.limit_share) / 100:.6f} USD")
    bound = None if case.bound_cents is None else Money.parse(f"{case.bound_cents / 100} USD")
    budget = dataclasses.replace(base.budget, sweep_limit=limit, trial_bound=bound)
    return dataclasses.replace(
        base,
        trainer=trainer,
        search=search,
        budget=budget,
        stage=dataclasses.replace(base.stage, steps=10),
        machine=dataclasses.replace(base.machine, cards=case.cards),
        paths=dataclasses.replace(base.paths, root=str(folder)),
    )


def billed(case: Case, held_ns: int) -> Fraction:
    """1e-12 USD for a machine that was held and given back."""
    granule = case.granularity_s * 10**9
    granules = -(-held_ns // granule)
    return Fraction(granules * granule * case.cards * case.cents_per_hour * PICO, 100 * 3600 * 10**9)


def longest_silence_ns(sweep: PaidSweep) -> int:
    """The longest that a trainer took from one word to the next, and to write a checkpoint after it."""
    kinds = (StepReport, EvalReport, CheckpointWritten)
    said = [w.message for e in sweep.ledger.events.read("sweep:smoke-test-1") for w in messages_in(e)]
    longest = max((m.wall_ns for m in said if isinstance(m, kinds)), default=0)
    started = max((sum(m.phase_card_ns.values()) // m.cards for m in said if isinstance(m, Started)), default=0)
    writing = max((m.wall_ns for m in said if isinstance(m, CheckpointWritten)), default=0)
    return max(longest, started) + writing


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=CASES)
def test_no_number_of_trials_at_once_overshoots_a_budget_by_more_than_it_takes_to_hear_of_it(
    case, base, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("case")
    price = f"{case.cents_per_hour / 100:.2f}"
    book = a_book(folder / "book", price=price, granularity_s=case.granularity_s, ahead=case.ahead)
    sweep = a_paid_sweep(folder, book=book, cfg=configured(base, case, folder)).run()
    (lease,) = sweep.ledger.leases.find()
    assert lease.to_ns is not None
    cost = billed(case, lease.to_ns - lease.from_ns)
    per_ns = Fraction(case.cards * case.cents_per_hour * PICO, 100 * 3600 * 10**9)
    granule = per_ns * case.granularity_s * 10**9
    unheard = per_ns * (longest_silence_ns(sweep) + HEARTBEAT_SECONDS * 10**9)
    assert sweep.cfg.budget.sweep_limit is not None
    limit = sweep.cfg.budget.sweep_limit.pico
    assert cost <= limit + unheard + granule
    assert sweep.ledger.reservations.find_open() == []
    scope = "sweep:smoke-test-1"
    reader = BudgetReader(sweep.ledger, book, [scope], always=[scope], simulated=True)
    assert reader.read(sweep.ledger.now_ns()).spent(scope, "USD").pico == math.floor(cost)
    assert run_checks(sweep.ledger, book, sweep.ledger.now_ns()) == []
    if all(state == "COMPLETED" for state in sweep.states):
        assert sweep.controller.stopped is None
    else:
        assert sweep.controller.stopped is not None
