"""What a sweep may spend: what it starts, what it sets aside, and what it does at a limit."""

from __future__ import annotations

from fractions import Fraction

import pytest

from cost.budgets import budget
from cost.clock import FakeClock
from cost.money import Money
from cost.periods import instant_ns
from cost.reports.by_trial import sweep_report
from sweeps.config.types import ConfigError
from sweeps.forecast.step_time import StepTime
from sweeps.journal.outcomes import STOP_OUTCOMES, AttemptOutcome
from tests.sweeps.paid import PaidSweep, a_book, a_paid_sweep, reserved

CARD_SECOND = 10**12 // 100
"""1e-12 USD: a cent."""
ONE = ("search.lr_scaling=[hold]", "search.prompts_per_step=[2]", "trainer.simulated.noise_frac=0")
FOUR = (*ONE, "search.trials=4")
TRIAL_SECONDS = 20 + 20 * 1.8 + 2 * 10 + 2 * 2
"""Startup, 20 steps of 16 completions, two evaluations, two checkpoints: 80."""


@pytest.fixture
def book(tmp_path):
    """A cent for a card and second."""
    return a_book(tmp_path / "book", price="36")


def spent(sweep: PaidSweep) -> Fraction:
    """Cents that the sweep's leases have cost."""
    pico = sweep_report(
        sweep.ledger, sweep.pricing.book, sweep.journal.record.sweep_id, sweep.ledger.now_ns()
    ).total_pico
    return Fraction(pico, CARD_SECOND)


def cents(number: float) -> str:
    return f"{number / 100:.4f} USD"


def test_without_limits_everything_runs(tmp_path, book):
    sweep = a_paid_sweep(tmp_path, *FOUR, book=book).run()
    assert sweep.states == ["COMPLETED"] * 4
    assert spent(sweep) == 4 * TRIAL_SECONDS


def test_a_trial_that_does_not_fit_is_not_started_and_the_sweep_reports_why(tmp_path, book):
    sweep = a_paid_sweep(tmp_path, *FOUR, f"budget.sweep_limit={cents(200)}", book=book).run()
    assert sweep.states == ["COMPLETED", "COMPLETED", "PLANNED", "PLANNED"]
    assert spent(sweep) == 2 * TRIAL_SECONDS
    assert sweep.controller.stopped is not None
    for text in (
        "no trial that is left fits",
        "a trial needs 0.96 USD",
        "limit 2 USD (budget.sweep_limit)",
        "1.60 USD spent",
    ):
        assert text in sweep.controller.stopped.text


def test_a_stopped_sweep_resumes_with_a_higher_limit_and_counts_earlier_spending(tmp_path, book):
    first = a_paid_sweep(tmp_path, *FOUR, f"budget.sweep_limit={cents(200)}", book=book).run()
    second = a_paid_sweep(tmp_path, *FOUR, f"budget.sweep_limit={cents(300)}", book=book, clock=first.clock).run()
    assert second.states == ["COMPLETED"] * 3 + ["PLANNED"]
    third = a_paid_sweep(tmp_path, *FOUR, f"budget.sweep_limit={cents(350)}", book=book, clock=first.clock).run()
    assert third.states == ["COMPLETED"] * 4


def test_a_limit_that_is_spent_during_a_trial_stops_it_at_its_next_report_with_a_checkpoint(tmp_path, book):
    sweep = a_paid_sweep(tmp_path, *ONE, f"budget.sweep_limit={cents(40)}", book=book).run()
    (trial,) = sweep.journal.record.trials.values()
    assert sweep.states == ["BUDGET_STOPPED"]
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == trial.summary.step > 0
    assert 40 <= spent(sweep) <= 40 + 10 + 1.8 + 2  # a heartbeat, a step and its checkpoint


def test_a_first_trial_of_unknown_cost_runs_alone_until_its_steps_are_measured(tmp_path, book):
    limit = f"budget.sweep_limit={cents(10_000)}"
    sweep = a_paid_sweep(tmp_path, *FOUR, "machine.cards=4", limit, book=book).run()
    assert sweep.states == ["COMPLETED"] * 4
    starts = sorted(u.from_ns for u in sweep.ledger.usages.find())
    assert 30e9 < starts[1] - starts[0] < 45e9
    assert starts[1:] == [starts[1]] * 3


def test_with_measured_step_times_all_trials_start_at_once(tmp_path, book):
    time = StepTime(0.1125, 44.0, "measured before", 1.2)
    limit = f"budget.sweep_limit={cents(10_000)}"
    sweep = a_paid_sweep(tmp_path, *FOUR, "machine.cards=4", limit, book=book, time=time).run()
    assert len({u.from_ns for u in sweep.ledger.usages.find()}) == 1


def test_a_bound_is_reserved_at_the_start_used_while_running_and_free_at_the_end(tmp_path, book):
    bound = (f"budget.trial_bound={cents(100)}", f"budget.sweep_limit={cents(250)}")
    sweep = a_paid_sweep(tmp_path, *FOUR, "machine.cards=4", *bound, book=book)
    started = []
    while attempt := sweep.controller.next_attempt():
        sweep.controller.on_granted(attempt)
        started.append(attempt)
    assert len(started) == 2
    assert reserved(sweep) == {a.trial_id: 100 * CARD_SECOND for a in started}
    events = [e.body for e in sweep.ledger.events.read("sweep:smoke-test-1") if e.kind == "attempt_started"]
    assert [(b["reserved"], b["reserved_by"]) for b in events] == [("1 USD", "budget.trial_bound")] * 2
    sweep.clock.advance_seconds(10)
    sweep.controller.on_tick()
    (found,), _ = _budgets(sweep, f"sweep:{sweep.journal.record.sweep_id}", cents(250))
    assert (found.spent, found.reserved) == (_usd(40), _usd(2 * 90))
    sweep.controller.on_ended(started[0], AttemptOutcome.COMPLETED, "")
    sweep.controller.on_released(started[0], True)
    assert list(reserved(sweep)) == [started[1].trial_id]


def _usd(number: int) -> Money:
    return Money(number * CARD_SECOND, "USD")


def _budgets(sweep: PaidSweep, scope: str, limit: str):
    budget.set_limit(sweep.ledger, scope, Money.parse(limit))
    found, notes = budget.budgets(sweep.ledger, sweep.pricing.book, sweep.ledger.now_ns())
    return [b for b in found if b.scope == scope and b.simulated], notes


def test_chosen_attempts_without_cards_count_too(tmp_path, book):
    bound = (f"budget.trial_bound={cents(100)}", f"budget.sweep_limit={cents(250)}")
    sweep = a_paid_sweep(tmp_path, *FOUR, "machine.cards=4", *bound, book=book)
    handed = [sweep.controller.next_attempt() for _ in range(4)]
    assert sum(attempt is not None for attempt in handed) == 2


def test_a_smaller_trial_is_started_where_a_larger_one_does_not_fit(tmp_path, book):
    sizes = ("search.lr_scaling=[hold]", "search.prompts_per_step=[16,2]", "trainer.simulated.noise_frac=0")
    time = StepTime(0.1, 44.0, "measured before", 1.2)
    sweep = a_paid_sweep(tmp_path, *sizes, f"budget.sweep_limit={cents(150)}", book=book, time=time).run()
    assert sweep.states == ["PLANNED", "COMPLETED"]


def test_idle_cards_are_part_of_what_a_trial_needs(tmp_path, book):
    alone = ("machine.cards=4", "search.max_concurrent=1")
    time = StepTime(0.1125, 44.0, "measured before", 1.0)
    few = a_paid_sweep(tmp_path / "a", *ONE, *alone, f"budget.sweep_limit={cents(4 * 80 - 1)}", book=book, time=time)
    assert few.run().states == ["PLANNED"]
    enough = a_paid_sweep(tmp_path / "b", *ONE, *alone, f"budget.sweep_limit={cents(4 * 80 + 1)}", book=book, time=time)
    assert enough.run().states == ["COMPLETED"]
    assert spent(enough) == 4 * TRIAL_SECONDS


def test_a_trial_is_stopped_at_its_own_limit_and_the_others_run(tmp_path, book):
    sizes = ("search.lr_scaling=[hold]", "search.prompts_per_step=[16,2]", "trainer.simulated.noise_frac=0")
    sweep = a_paid_sweep(tmp_path, *sizes, f"budget.trial_limit={cents(90)}", book=book).run()
    assert sweep.states == ["BUDGET_STOPPED", "COMPLETED"]
    large = next(iter(sweep.journal.record.trials.values()))
    assert "budget.trial_limit is 0.9 USD" in large.attempts[-1].message
    again = a_paid_sweep(tmp_path, *sizes, f"budget.trial_limit={cents(90)}", book=book, clock=sweep.clock).run()
    assert len(again.journal.record.trials[large.trial_id].attempts) == 1
    assert again.controller.stopped is not None
    assert "budget.trial_limit is 0.9 USD" in again.controller.stopped.text


def test_a_trial_at_its_own_limit_does_not_block_others(tmp_path, book):
    limits = (f"budget.trial_limit={cents(60)}", f"budget.sweep_limit={cents(1000)}")
    first = a_paid_sweep(tmp_path, *ONE, "search.trials=2", *limits, "search.max_concurrent=1", book=book)
    attempt = first.controller.next_attempt()
    assert attempt is not None
    first.controller.on_granted(attempt)
    for _ in range(7):
        first.clock.advance_seconds(10)
        first.controller.on_tick()
    stop = first.budget.stop_for(attempt.trial_id)
    assert stop is not None
    first.controller.on_ended(attempt, STOP_OUTCOMES[stop.kind], stop.text)
    first.controller.on_released(attempt, True)
    other = first.controller.next_attempt()
    assert other is not None
    assert other.trial_id != attempt.trial_id


def test_a_pause_does_not_wait_for_trials_at_their_own_limit(tmp_path, book):
    limits = (f"budget.trial_limit={cents(60)}", "budget.at_limit=pause")
    first = a_paid_sweep(tmp_path, *ONE, *limits, book=book).run()
    assert first.states == ["BUDGET_STOPPED"]
    again = a_paid_sweep(tmp_path, *ONE, *limits, book=book, clock=first.clock)
    assert "budget.trial_limit is 0.6 USD" in (again.budget.refusal(machine_acquired=True) or "")
    again.run()
    assert again.controller.stopped is not None
    assert "budget.trial_limit is 0.6 USD" in again.controller.stopped.text


def test_a_trials_own_limit_bounds_its_reservation(tmp_path, book):
    limits = (f"budget.trial_limit={cents(90)}", f"budget.sweep_limit={cents(200)}")
    sweep = a_paid_sweep(tmp_path, *FOUR, "machine.cards=4", "search.max_concurrent=4", *limits, book=book)
    assert sum(sweep.controller.next_attempt() is not None for _ in range(4)) == 2


@pytest.mark.parametrize("scope", ["sweep:smoke-test-1", "stage:smoke", "month"])
def test_of_a_stored_and_a_configured_limit_the_lower_one_applies(tmp_path, book, scope):
    sweep = a_paid_sweep(tmp_path, *FOUR, f"budget.sweep_limit={cents(250)}", book=book)
    budget.set_limit(sweep.ledger, scope, Money.parse(cents(150)))
    sweep.budget.heartbeat()
    assert sweep.run().states == ["COMPLETED"] + ["PLANNED"] * 3
    assert sweep.controller.stopped is not None
    assert f"(cost budget --set {scope})" in sweep.controller.stopped.text


def test_a_limit_in_another_currency_is_converted_at_the_rate_of_the_day_which_is_printed(tmp_path, book):
    sweep = a_paid_sweep(tmp_path, *FOUR, "budget.sweep_limit=1 EUR", book=book)
    assert sweep.budget.notes == (
        "warning: 1 EUR = 2 USD on 2020-01-01 (page): 2192 days older than what it converts; add a newer rate to "
        "conf/pricing/fx.yaml",
    )
    assert sweep.run().states == ["COMPLETED", "COMPLETED", "PLANNED", "PLANNED"]


def test_a_limit_without_an_exchange_rate_or_a_price_is_refused(tmp_path, book):
    with pytest.raises(ConfigError, match=r"budget.month_limit=5 JPY, and the machine costs USD: no exchange rate"):
        a_paid_sweep(tmp_path, "budget.month_limit=5 JPY", book=book)


def test_warnings_at_50_80_and_95_percent_are_given_once_per_sweep(tmp_path, book):
    limit = f"budget.sweep_limit={cents(330)}"
    first = a_paid_sweep(tmp_path, *FOUR, limit, f"budget.trial_bound={cents(1)}", book=book)
    for attempt in iter(first.controller.next_attempt, None):
        first.controller.on_granted(attempt)
    for seconds in (160, 10, 10):
        first.clock.advance_seconds(seconds)
        first.controller.on_tick()
    assert [text.split("%")[0] for text in first.view.warnings] == ["budget: sweep smoke-test-1: 50 "]
    first.controller.end_all(AttemptOutcome.INTERRUPTED, "ended")
    first.ledger.leases.detach(first.ledger.leases.find()[0].lease.lease_id, "smoke-test-1", "interrupted")
    second = a_paid_sweep(tmp_path, *FOUR, limit, f"budget.trial_bound={cents(1)}", book=book, clock=first.clock)
    for seconds in (10, 10, 75, 10, 40):
        second.clock.advance_seconds(seconds)
        second.controller.on_tick()
    assert [text.split("%")[0][-3:] for text in second.view.warnings] == ["80 ", "95 "]


def test_paused_trials_write_a_checkpoint_and_continue_once_the_limit_is_raised(tmp_path, book):
    waits = []

    def wait() -> None:
        waits.append(sweep.ledger.now_ns())
        if len(waits) == 3:
            budget.set_limit(sweep.ledger, "stage:smoke", Money.parse(cents(1000)))

    sweep = a_paid_sweep(tmp_path, *FOUR, "budget.at_limit=pause", book=book, wait=wait)
    budget.set_limit(sweep.ledger, "stage:smoke", Money.parse(cents(100)))
    sweep.run()
    assert sweep.states == ["COMPLETED"] * 4
    assert spent(sweep) > 4 * TRIAL_SECONDS  # the machine went on costing
    paused, going_on = [text for text in sweep.view.warnings if "%" not in text]
    assert "paused" in paused
    assert "the machine goes on costing 36.00 USD an hour" in paused
    assert "the sweep goes on" in going_on
    assert len(waits) == 4


def test_a_pause_at_a_month_limit_ends_with_the_month(tmp_path, book):
    clock = FakeClock(utc=instant_ns("2026-01-31T23:57:00Z"))
    limits = ("budget.at_limit=pause", f"budget.month_limit={cents(100)}", f"budget.trial_bound={cents(90)}")
    sweep = a_paid_sweep(tmp_path, *ONE, "search.trials=2", *limits, book=book, clock=clock).run()
    assert sweep.states == ["COMPLETED"] * 2
    second = sorted(u.from_ns for u in sweep.ledger.usages.find())[1]
    assert second == instant_ns("2026-02-01T00:00:00Z")


def test_a_reservation_of_a_driver_that_died_is_free_once_its_usage_is_closed(tmp_path, book):
    bound = (f"budget.trial_bound={cents(100)}", f"budget.sweep_limit={cents(150)}")
    first = a_paid_sweep(tmp_path, *FOUR, *bound, book=book)
    attempt = first.controller.next_attempt()
    assert attempt is not None
    first.controller.on_granted(attempt)
    assert reserved(first) != {}
    for usage in first.ledger.usages.find(only_open=True):
        first.ledger.usages.end(usage.key, "LOST", at_ns=usage.last_heartbeat_ns, end_estimated=True)
    assert reserved(first) == {}


def test_a_trial_that_does_not_fit_is_refused_before_a_machine_is_acquired(tmp_path, book):
    time = StepTime(0.1125, 44.0, "measured before", 1.2)
    few = a_paid_sweep(tmp_path / "a", *ONE, f"budget.sweep_limit={cents(95)}", book=book, time=time)
    assert "a trial needs 0.96 USD (measured before, x 1.2)" in (few.budget.refusal(machine_acquired=False) or "")
    enough = a_paid_sweep(tmp_path / "b", *ONE, f"budget.sweep_limit={cents(97)}", book=book, time=time)
    assert enough.budget.refusal(machine_acquired=False) is None


def test_the_least_that_a_machine_is_charged_for_must_fit_too(tmp_path):
    by_the_hour = a_book(tmp_path / "book", price="36", granularity_s=3600)
    sweep = a_paid_sweep(tmp_path, *ONE, f"budget.sweep_limit={cents(3599)}", book=by_the_hour)
    assert "a trial needs 36.00 USD (the least that the machine is charged for)" in (
        sweep.budget.refusal(machine_acquired=False) or ""
    )


def test_trials_use_time_that_the_provider_has_charged_in_advance(tmp_path):
    by_the_hour = a_book(tmp_path / "book", price="36", granularity_s=3600, ahead=True)
    time = StepTime(0.1125, 44.0, "measured before", 1.2)
    sweep = a_paid_sweep(tmp_path, *FOUR, "budget.sweep_limit=37 USD", book=by_the_hour, time=time).run()
    assert sweep.states == ["COMPLETED"] * 4
    assert spent(sweep) == 3600


def test_two_sweeps_do_not_both_reserve_the_rest_of_a_stage_budget(tmp_path, book, any_database):
    """Both choose a trial while there is room for one; who starts first has it, and the other's stops unharmed."""
    limits = (*FOUR, f"budget.trial_bound={cents(100)}", f"budget.stage_limit={cents(150)}")
    a = a_paid_sweep(tmp_path / "a", *limits, book=book, place=any_database, sweep_id="smoke-a-1")
    b = a_paid_sweep(tmp_path / "b", *limits, book=book, place=any_database, sweep_id="smoke-b-1", clock=a.clock)
    of_a, of_b = a.controller.next_attempt(), b.controller.next_attempt()
    assert of_a is not None
    assert of_b is not None
    a.controller.on_granted(of_a)
    b.controller.on_granted(of_b)
    assert [(r.sweep_id, r.amount) for r in b.ledger.reservations.find_open()] == [("smoke-a-1", _usd(100))]
    stop = b.budget.stop_for(of_b.trial_id)
    assert stop is not None
    assert "another sweep reserved the money first: stage smoke" in stop.text
    b.controller.on_ended(of_b, STOP_OUTCOMES[stop.kind], stop.text)
    b.controller.on_released(of_b, True)
    assert b.controller.next_attempt() is None
    assert b.controller.stopped is not None
    assert "1.00 USD reserved for running trials" in b.controller.stopped.text
    for sweep in (a, b):
        sweep.ledger.close()


def test_a_resumed_sweep_counts_the_cost_of_its_lease_without_a_driver_and_no_other_time(tmp_path, book):
    first = a_paid_sweep(
        tmp_path, *FOUR, f"budget.sweep_limit={cents(200)}", f"budget.trial_bound={cents(90)}", book=book
    )
    attempt = first.controller.next_attempt()
    assert attempt is not None
    first.controller.on_granted(attempt)
    first.clock.advance_seconds(30)
    first.controller.on_tick()
    lease_id = first.ledger.leases.find()[0].lease.lease_id
    for usage in first.ledger.usages.find(only_open=True):  # killed; another driver closes its usages later
        first.ledger.usages.end(usage.key, "LOST", at_ns=usage.last_heartbeat_ns, end_estimated=True)
    first.clock.advance_seconds(60)
    first.ledger.leases.close(lease_id, "killed")
    first.clock.advance_seconds(3600)
    again = a_paid_sweep(
        tmp_path,
        *FOUR,
        f"budget.sweep_limit={cents(175)}",
        f"budget.trial_bound={cents(90)}",
        book=book,
        clock=first.clock,
    )
    assert "no trial is started" in (again.budget.refusal(machine_acquired=True) or "")
    assert "0.90 USD spent" in (again.budget.refusal(machine_acquired=True) or "")


def test_a_sweep_with_a_limit_stops_where_its_machine_can_no_longer_be_priced(tmp_path, book):
    """An unknown cost is not zero: with it, no limit could be kept."""
    sweep = a_paid_sweep(tmp_path, *FOUR, "budget.sweep_limit=100 USD", book=book)
    rules = tmp_path / "book" / "billing.yaml"
    heartbeat, at = sweep.budget.heartbeat, sweep.clock.utc + 100 * 10**9

    def heartbeat_without_rules() -> None:
        if sweep.clock.utc >= at:
            rules.write_text("rules: []\n")
        heartbeat()

    sweep.budget.heartbeat = heartbeat_without_rules
    sweep.run()
    assert sweep.states == ["COMPLETED", "BUDGET_STOPPED", "PLANNED", "PLANNED"]
    assert sweep.controller.stopped is not None
    assert "is unknown: no billing rule for provider 'test'" in sweep.controller.stopped.text
    report = sweep_report(sweep.ledger, book, sweep.journal.record.sweep_id, sweep.ledger.now_ns())
    assert report.unpriced
