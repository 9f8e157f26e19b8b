"""The contract as JSON: everything comes back as it was, and what does not fit is refused with its place."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl import spec
from rl.codec import from_json, message_from_json, to_json

EVENTS = (spec.Started, spec.StepReport, spec.EvalReport, spec.CheckpointWritten, spec.RoleRestarted, spec.Finished)
COMMANDS = (spec.Continue, spec.Checkpoint, spec.SetLr, spec.Stop)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation of the contract, JSON types where it says `Any`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(a) for a in args])
    if hint is type(None):
        return st.none()
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=5), values_of(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        return instances_of(typing.cast(type, hint))
    simple = {
        int: st.integers(),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=10),
        bool: st.booleans(),
    }
    return simple[hint]


def instances_of(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(hints[f.name]) for f in dataclasses.fields(cls)})


def through_text(value: Any) -> Any:
    return json.loads(json.dumps(to_json(value)))


@pytest.mark.parametrize("cls", [*EVENTS, *COMMANDS])
@given(data=st.data())
def test_every_event_and_command_comes_back_equal(cls: type, data: st.DataObject) -> None:
    message = data.draw(instances_of(cls))
    assert message_from_json(through_text(message)) == message


@given(trial=instances_of(spec.TrialSpec))
def test_every_trial_spec_comes_back_equal(trial: spec.TrialSpec) -> None:
    assert from_json(spec.TrialSpec, through_text(trial)) == trial


@given(number=st.floats(allow_nan=False))
def test_a_float_keeps_every_bit(number: float) -> None:
    assert message_from_json(through_text(spec.SetLr(number))).lr.hex() == number.hex()


def test_nanoseconds_beyond_a_double_stay_exact() -> None:
    ns = 2**63 + 1
    event = spec.Finished(1, 1, None, {"train": ns})
    assert message_from_json(through_text(event)).phase_card_ns["train"] == ns


def test_undefined_is_not_zero() -> None:
    update = spec.UpdateCurves(
        *(spec.Mean(1.0, 1.0), None, None, None, spec.Mean(0.0, 4.0), spec.Mean.EMPTY, None, spec.Mean.EMPTY),
        *(0.0, 0.0, 0.0),
    )
    back = from_json(spec.UpdateCurves, through_text(update))
    assert back.clip_low is None
    assert back.clip_high == spec.Mean(0.0, 4.0)
    assert back.entropy.value is None


def test_not_a_number_comes_back_as_not_a_number() -> None:
    assert math.isnan(message_from_json(through_text(spec.SetLr(math.nan))).lr)


def test_a_whole_number_is_taken_where_a_float_is_due() -> None:
    lr = from_json(spec.SetLr, {"lr": 1}).lr
    assert lr == 1.0
    assert isinstance(lr, float)


GOOD_STOP = {"type": "stop", "kind": "pruned", "text": "enough"}
GOOD_CHECKPOINT = to_json(spec.CheckpointWritten(1, "/c", 10, 5, {"checkpoint": 5}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**GOOD_STOP, "type": "halt"}, "unknown type of message 'halt'; known: .*stop"),
        ({"kind": "pruned"}, "unknown type of message None"),
        ({"type": "stop"}, "Stop.kind is missing"),
        ({**GOOD_STOP, "why": "x"}, "Stop has no key 'why'; it has: kind, text"),
        ({**GOOD_STOP, "text": 3}, "Stop.text=3 should be of type str"),
        ({**GOOD_STOP, "kind": "tired"}, "Stop.kind='tired' is not one of 'interrupted', .*'pruned'"),
        ({**GOOD_CHECKPOINT, "step": True}, "CheckpointWritten.step=True should be of type int"),
        ({**GOOD_CHECKPOINT, "step": 1.0}, "CheckpointWritten.step=1.0 should be of type int"),
        ({**GOOD_CHECKPOINT, "phase_card_ns": {"train": "5"}}, r"phase_card_ns.train='5' should be of type int"),
        ({**GOOD_CHECKPOINT, "phase_card_ns": [1]}, r"phase_card_ns=\[1\] should be a mapping"),
    ],
)
def test_a_message_that_does_not_fit_is_refused_with_its_place(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        message_from_json(data)


def test_a_value_outside_of_its_choices_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"TrainerSpec\.precision='fp8' is not one of 'auto', 'fp32', 'bf16'"):
        from_json(spec.TrainerSpec, {"precision": "fp8"})


def test_a_fault_deep_inside_is_named_by_its_path() -> None:
    results = [{"question_id": "q", "correct": 1, "samples": 2}, {"question_id": "r", "correct": "1", "samples": 2}]
    report = spec.EvalReport(0, 0, 1, {}, (), spec.Mean(1.0, 1.0), spec.Mean(0.0, 1.0))
    with pytest.raises(ValueError, match=r"EvalReport.results\[1\].correct='1' should be of type int"):
        message_from_json({**to_json(report), "results": results})


@dataclasses.dataclass(frozen=True)
class Celsius:
    degrees: int

    @staticmethod
    def parse(text: object) -> Celsius:
        if not str(text).endswith(" C"):
            raise ValueError("write degrees and C, such as 20 C")
        return Celsius(int(str(text)[:-2]))

    def __str__(self) -> str:
        return f"{self.degrees} C"


@dataclasses.dataclass(frozen=True)
class Weather:
    day: Celsius
    night: Celsius | None


def test_a_type_with_parse_is_written_as_its_text_and_read_back_by_parse() -> None:
    weather = Weather(Celsius(20), None)
    assert to_json(weather) == {"day": "20 C", "night": None}
    assert from_json(Weather, {"day": "20 C", "night": None}) == weather


def test_a_text_that_does_not_parse_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"Weather\.night=warm: write degrees and C"):
        from_json(Weather, {"day": "20 C", "night": "warm"})
