"""Whatever a file holds: an error of our own or a run, and no value that is not in the file."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from rl.trainers.logs import ImportedRun, LogError, read_bytes
from rl.trainers.logs.text import read_document

TEXT = r"""
{'loss': 0.1234, 'reward': 0.5678, 'kl': 0.0312, 'grad_norm': 1.875, 'learning_rate': 2e-06, 'epoch': 0.31}
step:1 - actor/entropy:0.4321 - critic/rewards/mean:0.625 - actor/grad_norm:np.float64(0.8125) - timing_s/gen:12.75
step 1: {'train/loss': 0.015, 'train/pg_clipfrac': 0.0625, 'train/grad_norm': 0.375}
Global step 1: {'policy_loss': 0.25, 'reward': 0.4375, 'actor_lr': 5e-07, 'kl': 0.0078125}
Step 1 | 12.5s | Reward 0.3125 | Truncation 12.5%
step,reward,kl
<table><tr><th>Step</th><th>reward</th></tr><tr><td>1</td><td>0.1875</td></tr></table>
{"step": 1, "reward": 0.6875, "kl": NaN}
(TaskRunner pid=7) ========================= Step 1/9 =========================
📊 Training Results:
  • Avg Reward: 0.9375
""".strip().split("\n")
"""One line in each format; every number is written in one way only."""


def outcome(data: bytes) -> ImportedRun | None:
    """The run, or None where it is refused; anything else than a LogError fails the test."""
    try:
        return read_bytes(data)
    except LogError:
        return None


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_random_bytes(data: bytes) -> None:
    outcome(data)


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from([*TEXT, "", "\r", "\x1b[36m", "{", "}", "'", '"', "(x pid=1) ", "\0", "[", "\ufeff", "| - "]),
        max_size=30,
    ),
    st.sampled_from(["", "\n", "\r", " "]),
)
def test_random_pieces_of_logs(pieces: list[str], joint: str) -> None:
    outcome(joint.join(pieces).encode())


@settings(max_examples=300)
@given(st.data())
def test_no_value_is_invented_where_lines_are_cut_and_interleaved(data: st.DataObject) -> None:
    """Lines of all formats, each cut somewhere and mixed with others: every value that is read stands in the file."""
    pieces: list[str] = []
    for _ in range(data.draw(st.integers(1, 12))):
        line = data.draw(st.sampled_from(TEXT))
        start = data.draw(st.integers(0, len(line)))
        end = data.draw(st.integers(start, len(line)))
        pieces.append(data.draw(st.sampled_from([line, line[:end], line[start:], line[start:end]])))
        pieces.append(data.draw(st.sampled_from(["\n", "\n", "\n", "\r", " ", ""])))
    text = "".join(pieces)
    run = outcome(text.encode())
    if run is None:
        return
    numbers = {abs(value) for value in numbers_in(read_document(text.encode()).text)}
    for read in run.rows:
        for curve, value in read.curves().items():
            if not math.isfinite(value) or curve.endswith("_seconds"):
                continue  # seconds are summed, and read from bars
            assert any(
                math.isclose(abs(value), number * scale, rel_tol=1e-12) for number in numbers for scale in (1.0, 0.01)
            ), (curve, value, text)


def numbers_in(text: str) -> list[float]:
    """Every run of characters that may be read as a number, also where the ends of lines lie within it."""
    joined = re.sub(r"[\r\n]", "", text)
    found = re.findall(r"\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?", text) + re.findall(
        r"\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+", joined
    )
    return [0.0, *(float(number) for number in found)]


def row(x: float) -> dict[str, float]:
    return {"loss": x / 8, "grad_norm": x, "reward": x / 2, "kl": x / 4}


@cache
def value(step: int) -> float:
    """Different for each step, with many digits."""
    return math.sqrt(step) + 1


def verl(step: int, x: float) -> str:
    names = {"loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "kl": "actor/kl_loss"}
    names["reward"] = "critic/rewards/mean"
    parts = [f"{names[curve]}:{number}" for curve, number in row(x).items()]
    return " - ".join([f"step:{step}", *parts, f"perf/throughput:{x}"])


def openrlhf(step: int, x: float) -> str:
    names = {"loss": "policy_loss", "grad_norm": "actor_grad_norm", "reward": "reward", "kl": "kl"}
    return f"Global step {step}: { {names[curve]: number for curve, number in row(x).items()} }"


def generic(step: int, x: float) -> str:
    return " | ".join([f"step {step}", *(f"{curve}: {number}" for curve, number in row(x).items()), "end: 1"])


def prime_rl(step: int, x: float) -> str:
    return f"SUCCESS Step {step} | 2.5s | Loss {x / 8} | Grad. Norm {x} | Reward {x / 2} | Turns 1.0"


def nemo_rl(step: int, x: float) -> str:
    return f"========== Step {step}/99 ==========\nTraining Results:\n  • Loss: {x / 8}\n  • Avg Reward: {x / 2}"


def table(step: int, x: float) -> str:
    cells = ",".join(str(number) for number in row(x).values())
    return f"step,{','.join(row(x))}\n1,{cells}" if step == 1 else f"{step},{cells}"


def html(step: int, x: float) -> str:
    head = f"<table><tr><th>step</th>{''.join(f'<th>{curve}</th>' for curve in row(x))}</tr>\n" if step == 1 else ""
    return f"{head}<tr><td>{step}</td>{''.join(f'<td>{number}</td>' for number in row(x).values())}</tr>"


FORMATS: dict[str, Callable[[int, float], str]] = {
    "trl": lambda step, x: str(row(x) | {"num_tokens": 100.0 * step}),
    "verl": verl,
    "openrlhf": openrlhf,
    "json": lambda step, x: json.dumps({"step": step, **row(x)}),
    "generic": generic,
    "prime-rl": prime_rl,
    "nemo-rl": nemo_rl,
    "table": table,
    "html": html,
}


def log(format_: str, count: int) -> str:
    return "".join(FORMATS[format_](step, value(step)) + "\n" for step in range(1, count + 1))


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 12))
def test_a_whole_log_of_each_format_is_read(format_: str, count: int) -> None:
    run = outcome(log(format_, count).encode())
    assert run is not None
    assert [(read.step, read.reward, read.loss) for read in run.rows] == [
        (step, value(step) / 2, value(step) / 8) for step in range(1, count + 1)
    ]


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.integers(1, 12),
    st.integers(0, 2000),
    st.booleans(),
)
def test_a_log_that_is_cut_anywhere_keeps_true_values_only(
    format_: str, count: int, cut: int, compressed: bool
) -> None:
    data = log(format_, count).encode()
    if compressed:
        data = gzip.compress(data)
    run = outcome(data[: len(data) - cut] if cut < len(data) else data[:cut])
    for read in run.rows if run else ():
        expected = row(value(read.step))
        curves = {name: number for name, number in read.curves().items() if name != "step_seconds"}
        assert curves == {name: expected[name] for name in curves}


@settings(max_examples=200)
@given(st.sampled_from(["trl", "verl", "openrlhf"]), st.integers(30, 300), st.integers(1, 6), st.booleans())
def test_a_log_that_was_wrapped_at_any_width_is_read_whole(
    format_: str, width: int, count: int, prefixed: bool
) -> None:
    prefix = "(Runner pid=5) " if prefixed else ""
    lines: list[str] = []
    for step in range(1, count + 1):
        text = FORMATS[format_](step, value(step))
        lines += [prefix + text[i : i + width] for i in range(0, len(text), width)]
    run = outcome(("\n".join(lines) + "\n").encode())
    assert run is not None
    assert [read.grad_norm for read in run.rows] == [value(step) for step in range(1, count + 1)]
    assert [read.reward for read in run.rows] == [value(step) / 2 for step in range(1, count + 1)]


@settings(max_examples=200)
@given(st.sampled_from(sorted(FORMATS)), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4))
def test_damaged_bytes_raise_nothing_else(format_: str, damage: list[tuple[int, int]]) -> None:
    data = bytearray(log(format_, 8).encode())
    for position, byte in damage:
        data[position % len(data)] = byte
    outcome(bytes(data))
