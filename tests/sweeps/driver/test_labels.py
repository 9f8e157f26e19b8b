"""Labels of an attempt in the ledger."""

from __future__ import annotations

import pytest

from sweeps.config.build import compose
from sweeps.driver.labels import accuracy_labels, start_labels
from sweeps.planning.plan import make_plan
from tests.sweeps.reports import an_evaluation


def test_an_attempt_starts_with_its_stage_its_parameters_and_its_forecast():
    cfg = compose(["+stage=smoke", "trainer=simulated", "search.space.algorithm.kl_coef=[0.01]"])
    trial = make_plan(cfg).trials[0]
    labels = start_labels(cfg, trial, {"forecast_p50": "1 USD"})
    assert labels == {
        "stage": "smoke",
        "state": "RUNNING",
        "prompts_per_step": "2",
        "group_size": "8",
        "lr": "1e-05",
        "lr_scaling": "hold,linear",
        "seed": "0",
        "varied": "kl_coef=0.01",
        "trainer": "simulated",
        "forecast_p50": "1 USD",
    }


def test_an_accuracy_has_its_interval():
    labels = {name: float(text) for name, text in accuracy_labels(an_evaluation(20, correct=32)).items()}
    assert labels["acc"] == pytest.approx(0.5)
    assert 0.36 < labels["acc_ci_low"] < 0.40
    assert 0.60 < labels["acc_ci_high"] < 0.64
