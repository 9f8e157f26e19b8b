"""Numbers and literals as programs print them. What is not exactly a number has no value.

Tested in tests/rl/trainers/logs/test_any_bytes.py and tests/rl/trainers/logs/test_files.py.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|NaN|NAN|inf|Inf|INF|Infinity)"
_PLAIN = re.compile(rf"({NUMBER})(%?)", re.ASCII)
_SCALAR_TYPES = r"(?:float|int|double|bfloat|tensor|array)\d*"
_WRAPPED = re.compile(rf"(?:\w+\.)*{_SCALAR_TYPES}\(['\"]?([^'\",()]*)['\"]?[^()]*\)", re.ASCII)
_MAX_LITERAL = 1_000_000
"""Characters of the largest dictionary that is parsed."""
_DEEPEST = 20
"""Nested dictionaries below this level are not metrics."""


def number(value: Any) -> float | None:
    """A number, or text that is one, such as `4e-05`, `12.5%` or `np.float64(0.25)`; else None. -0.0 becomes 0.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value) + 0.0
        except OverflowError:
            return None
    if not isinstance(value, str) or len(value) > 200:
        return None
    text = value.strip()
    if wrapped := _WRAPPED.fullmatch(text):
        text = wrapped[1].strip()
    if not (plain := _PLAIN.fullmatch(text)):
        return None
    return float(plain[1]) / (100 if plain[2] else 1) + 0.0


def step_number(value: Any) -> int | None:
    """A step counter: a whole number from 0 to a thousand million."""
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found) or not 0 <= found < 1e9:
        return None
    return int(found)


def literal(text: str) -> Any:
    """The value of a Python or JSON literal; also with nan, inf, null, true, `np.float64(...)` and `tensor(...)`.

    Anything else in it (objects, calls) is None. Nothing is evaluated.

    Raises:
        ValueError: it is no literal.
    """
    if len(text) > _MAX_LITERAL:
        raise ValueError("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(str(error)) from None


_NAMES = {"nan": math.nan, "NaN": math.nan, "inf": math.inf, "Infinity": math.inf, "true": True, "false": False}


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Dict():
            return {
                _value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)
            }
        case ast.List() | ast.Tuple() | ast.Set():
            return [_value(item) for item in node.elts]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            inner = number(_value(operand))
            return None if inner is None else (-inner if isinstance(sign, ast.USub) else inner)
        case ast.Name(id=name):
            return _NAMES.get(name)
        case ast.Attribute(attr=name):
            return _NAMES.get(name)
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[first, *_]):
            return _value(first) if re.fullmatch(_SCALAR_TYPES, called) else None
        case _:
            return None


def flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values of nested dictionaries, with the keys joined by `/`."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and prefix.count("/") < _DEEPEST:
            yield from flat(value, f"{name}/")
        else:
            yield name, value


def numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """The entries of a (nested) dictionary that are numbers."""
    return {name: found for name, value in flat(values) if (found := number(value)) is not None}


def closing_brace(text: str, start: int) -> int:
    """Position after the brace that closes the one at `start`, -1 if none does. Braces within quotes do not count."""
    depth, quote, i, end = 0, "", start, len(text)
    while i < end:
        c = text[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        elif c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if not depth:
                return i + 1
        i += 1
    return -1
