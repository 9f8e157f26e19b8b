r"""Numbers in text: which number a completion gives as its answer, and its exact value.

Where the answer stands (`final_number`), in this order:

1. After the first `####` that a number follows. This is GSM8K's own convention: its published evaluation searches for
   `#### ` and a number, takes the first, and ignores commas (github.com/openai/grade-school-math, `dataset.py`). The
   `strict-match` filter of EleutherAI's lm-evaluation-harness (`tasks/gsm8k`) does the same. What follows the number,
   such as a unit or another sentence, does not count.
2. In the last `\boxed{}` that contains a number, the convention of MATH (D. Hendrycks et al., arXiv:2103.03874).
3. After the last "answer is" or "Answer:" that a number follows.
4. Otherwise the last number of the text, as in the `flexible-extract` filter of lm-evaluation-harness, with one
   exception: in "18 apples in 2 boxes" the answer is 18, since the second number only says where they are.

Which values are read: thousands separators (comma, `{,}`, spaces of any width, apostrophe, underscore, and the Indian
grouping 1,00,000), currency signs before or after the sign, powers of ten (1e3, 1.5 x 10^3), powers (2^10), fractions
(3/4, \frac{3}{4}, 1 1/2, ½), percent, and the words hundred to trillion. Numbers in words are not read. Values are
exact: no floating-point number is involved.

Every pattern is unambiguous or possessive, so that a search takes time linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_TRANSLATION = str.maketrans(
    {
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # full-width forms
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63", "-"),
        "\u2044": "/",
        "\u2019": "'",
    }
)
_VULGAR = dict(
    zip(
        "\u00bd\u2153\u2154\u00bc\u00be\u2155\u2156\u2157\u2158\u2159\u215a\u215b\u215c\u215d\u215e",
        ["1/2", "1/3", "2/3", "1/4", "3/4", "1/5", "2/5", "3/5", "4/5", "1/6", "5/6", "1/8", "3/8", "5/8", "7/8"],
        strict=True,
    )
)
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
_WORDS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LETTERS = {"k": 3, "K": 3, "M": 6, "m": 6, "B": 9, "b": 9}
"""Multiples that are read after a currency sign only: `$5k`. Elsewhere 5 m is a length."""

_CURRENCY = (
    r"(?:(?:US|CA|AU|HK|NZ|R)?\\?\$|[\u20ac\u00a3\u00a5\u20b9\u20a9\u20bd\u20ba\u20ab]|USD|EUR|GBP|CNY|INR|Rs\.?)"
)
# The separators between groups of three digits. One number uses one of them throughout.
_SEPARATOR = r"(?:,|\{,\}|\\[,;: ]|['_ " + _SPACES + r"])"
_DIGITS = (
    r"(?:"
    r"\d{1,3}(?:\.\d{3})+,\d{1,2}(?![.,]?\d)"  # 1.234,56
    r"|\d{1,3}(?:\.\d{3}){2,}(?![.,]?\d)"  # 1.234.567
    r"|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)(?:\.\d++)?"  # 1,00,000
    r"|\d{1,3}(?P<separator>" + _SEPARATOR + r")\d{3}(?!\d)(?:(?P=separator)\d{3}(?!\d))*+(?:\.\d++)?"
    r"|\d++(?:\.\d++)?"
    r"|\.\d++"
    r")"
)
_NUMBER = re.compile(
    # A minus after a digit or a closing bracket is an operator ("9-4" ends with 4); elsewhere it is a sign.
    r"(?P<sign>(?<![\d.)\]}])[-+]|(?<![\d)\]}] )\b(?:negative|minus) )?"
    r"(?:(?P<currency>" + _CURRENCY + r") ?(?P<inner>-)?)?"
    r"(?:"
    r"(?:(?P<whole>\d{1,9})[ \\,;]{0,3})?\\[dt]?frac ?(?:\{ ?(?P<top>-?\d{1,99}) ?\} ?\{ ?(?P<bottom>\d{1,99}) ?\}"
    r"|(?P<top1>\d)(?P<bottom1>\d))"
    r"|(?:(?P<units>\d{1,9})[ -])?(?P<over>\d{1,99}) ?/ ?(?P<under>\d{1,99})(?!\.?\d|/)"
    r"|(?P<digits>" + _DIGITS + r")"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})(?!\.?\d)"
    r"| ?(?:\u00d7|\\times|\\cdot|\*|x|\u00b7) ?10 ?(?:\^ ?\{? ?(?P<ten>[-+]?\d{1,3})(?!\d) ?\}?"
    r"|(?P<super>[\u2070-\u2079\u00b2\u00b3\u00b9\u207b]{1,4}))"
    r"|(?:\^|\*\*)\{? ?(?P<power>-?\d{1,3})(?!\d) ?\}?"
    r"|(?P<superpower>[\u2070-\u2079\u00b2\u00b3\u00b9\u207b]{1,3})"
    r"|[ -](?P<word>hundred|thousand|million|billion|trillion)\b"
    r"|(?P<letter>[kKmMbB])\b)?"
    r")"
    r"(?P<percent> ?\\?%| percent\b| per cent\b)?",
    re.ASCII,
)
_VULGAR_FRACTION = re.compile(r"(\d?)([" + "".join(_VULGAR) + "])")
_SPACED_SIGN = re.compile(r"(= ?)- (?=[\d.$\\])")
_GSM8K_ANCHOR = re.compile(r"####\s*(?:[*`_(\[]|\\\(|\\\[|\\boxed\{|\$(?=[\\$])){0,6}\s*")
_BOXED = re.compile(r"\\(?:boxed|fbox) ?\{")
_ANSWER_ANCHOR = re.compile(r"\banswer\b[^\d\n.:=]{0,40}?(?:\bis\b|\bare\b|\bequals\b|[:=])", re.IGNORECASE)
_EQUATION = re.compile(r"[\d\s.,+\-*/\u00d7\u00f7\u00b7()$%^]*+=(?:[\d\s.,+\-*/\u00d7\u00f7\u00b7()$%^]*+=)*+")
# Between the head of a phrase and a number that only qualifies the head: "18 apples in 2 boxes".
_QUALIFIED = re.compile(r"(?: [A-Za-z]+){1,3} (?:in|into|per|across|among|within|out of) (?:the |each of |all )?")
_STATEMENT = re.compile(r"\b(?:is|are|was|were|and|or|so|not|but|then|plus|minus|times|equals|makes|gives)\b")
_MOST_DIGITS = 4000
"""Numbers with more digits are not converted to fractions: Python limits the length of integers in text."""


@dataclass(frozen=True)
class Number:
    """A number as written: its exact value, and whether a percent sign follows it."""

    value: Fraction | Decimal
    """A Decimal only where the number has thousands of digits."""
    percent: bool = False

    def equals(self, other: Number) -> bool:
        """Whether the two are the same answer.

        If exactly one of the two has a percent sign, both readings of the sign are accepted: `25%` equals `25`, as in
        GSM8K, whose answers have no units, and it equals `0.25`.
        """
        if self.value == other.value:
            return True
        if self.percent == other.percent:
            return False
        percent, plain = (self, other) if self.percent else (other, self)
        return isinstance(percent.value, Fraction) and percent.value / 100 == plain.value


@dataclass(frozen=True)
class _Found:
    """A number and its place in the text."""

    number: Number
    start: int
    end: int


def final_number(text: str) -> Number | None:
    """The number that `text` gives as its answer, by the order of the module's docstring; None if there is none."""
    text = _normalised(text)
    for anchor in _GSM8K_ANCHOR.finditer(text):
        if found := _number_at(text, anchor.end()):
            return found.number
    for content in reversed(_boxed(text)):
        if found := _first(content):
            return found
    for anchor in reversed(list(_ANSWER_ANCHOR.finditer(text))):
        if found := _first(_sentence(text, anchor.end())):
            return found
    return _last(text)


def parse_number(text: str) -> Number | None:
    """`text` as a number; None unless all of it, apart from surrounding white space and `$...$`, is one number."""
    text = _normalised(text).strip()
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    found = _number_at(text, 0)
    return found.number if found and found.end == len(text) else None


def _normalised(text: str) -> str:
    """`text` with one form for each sign, dash and vulgar fraction, and with `= - 5` as `= -5`."""
    text = text.translate(_TRANSLATION)
    text = _VULGAR_FRACTION.sub(lambda m: f"{m[1]} {_VULGAR[m[2]]}" if m[1] else _VULGAR[m[2]], text)
    return _SPACED_SIGN.sub(r"\1-", text)


def _boxed(text: str) -> list[str]:
    """The contents of all `\\boxed{}` with a closing brace, in their order; of nested ones the outer."""
    contents, at = [], 0
    while opening := _BOXED.search(text, at):
        depth, end = 1, opening.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            break  # every later one lies in this one, which is cut off
        contents.append(text[opening.end() : end - 1])
        at = end
    return contents


def _sentence(text: str, start: int) -> str:
    """From `start` to the end of the sentence or of the line; of the next line if nothing follows on this one."""
    rest = text[start : start + 400].lstrip(" *_`:\n\t")
    return re.split(r"\n|[.!?](?=\s)", rest, maxsplit=1)[0]


def _first(text: str) -> Number | None:
    """The first number of `text`; after `3 + 4 =`, the number behind the equals sign."""
    if equation := _EQUATION.match(text):
        text = text[equation.end() :] if next(_numbers(text[equation.end() :]), None) else text
    found = next(_numbers(text), None)
    return found.number if found else None


def _last(text: str) -> Number | None:
    """The last number of `text`, or the number that the last one only qualifies."""
    last = None
    for found in _numbers(text):
        between = text[last.end : found.start] if last else ""
        qualifies = len(between) < 80 and _QUALIFIED.fullmatch(between) and not _STATEMENT.search(between)
        if not qualifies:
            last = found
    return last.number if last else None


def _numbers(text: str) -> Iterator[_Found]:
    """All numbers of `text`. Exponents of units (cm^2), indices (x_1) and digits within a formula (H2O) are none."""
    for match in _NUMBER.finditer(text):
        before, after = text[max(match.start() - 2, 0) : match.start()], text[match.end() : match.end() + 1]
        if re.search(r"[\^_]\{?$", before) and not re.search(r"_[_*]$", before):
            continue
        if before[-1:].isalpha() and after.isalpha():
            continue
        if found := _found(match):
            yield found


def _number_at(text: str, start: int) -> _Found | None:
    match = _NUMBER.match(text, start)
    return _found(match) if match else None


def _found(match: re.Match[str]) -> _Found | None:
    """The number of `match`; None for a division by zero."""
    value, end = _value(match), match.end()
    if value is None:
        return None
    if match["letter"]:
        if match["currency"]:
            value = value * 10 ** _LETTERS[match["letter"]]
        else:
            end = match.end("letter") - 1
    negative = (match["sign"] or "").strip() in ("-", "negative", "minus")
    if negative != bool(match["inner"]):
        value = -value
    return _Found(Number(value, percent=bool(match["percent"])), match.start(), end)


def _value(match: re.Match[str]) -> Fraction | Decimal | None:
    """The value without its sign."""
    if digits := match["digits"]:
        return _decimal(match, digits)
    top = match["top"] or match["top1"] or match["over"]
    bottom = match["bottom"] or match["bottom1"] or match["under"]
    if int(bottom) == 0:
        return None
    return int(match["whole"] or match["units"] or 0) + Fraction(int(top), int(bottom))


def _decimal(match: re.Match[str], digits: str) -> Fraction | Decimal:
    """The value of digits with separators, and of a power or a word after them."""
    plain = _without_separators(digits, match["separator"])
    if len(plain) > _MOST_DIGITS:
        return Decimal(plain)
    value = Fraction(plain)
    exponent = match["exponent"] or match["ten"] or (match["super"] or "").translate(_SUPERSCRIPTS)
    if exponent:
        return value * Fraction(10) ** int(exponent)
    power = match["power"] or (match["superpower"] or "").translate(_SUPERSCRIPTS)
    if power and len(plain) <= 20 and (value or int(power) >= 0):
        return value ** int(power)
    return value * 10 ** _WORDS.get(match["word"] or "", 0)


def _without_separators(digits: str, separator: str | None) -> str:
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}|\d{1,3}(?:\.\d{3}){2,}", digits):
        return digits.replace(".", "").replace(",", ".")
    return digits.replace(separator or ",", "")
