"""What an answer is compared with: one right answer or a list of them, as text and as exact numbers. No I/O."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Final, Literal, NamedTuple

from pydantic import JsonValue

#: The character before the fraction of a number: the other one of the two groups its digits by three.
DecimalMark = Literal[".", ","]

#: Numbers with a larger exponent, or a smaller one than its negative, are not read: they may be as long as they are.
MAX_EXPONENT: Final = 9_999

#: Exact addition, subtraction and multiplication of what `parse_number` gives.
EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)

#: What looks like a number. Digits next to letters (42nd) are none, nor are those with points between them (versions).
_NUMBER = re.compile(
    r"(?<![\w.])(?<!\d[,\u066b\u066c])(?<!\d['\u2019\u00a0\u2009\u202f](?=\d{3}(?!\d)))[-+]?(?:\d|[.,\u066b]\d)(?:\d|[.,\u066b\u066c]\d|['\u2019\u00a0\u2009\u202f]\d{3}(?!\d))*+"
    r"(?:[eE][-+]?\d+)?[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215f]*+(?!\w|\.\d)",
    re.ASCII,
)
#: What stands between two numbers of which neither is meant alone: a fraction, a power, a sum, a range, a time.
_JOINT = re.compile(r"( ?)(?:[-+/^*:\u00b7\u00b1\u00d7\u2013x]|\*\*|\+/-|\\(?:times|cdot|pm))\1[{(]?|\}\{")
_GROUP, _NEXT_GROUP = re.compile(r"[-+]?\d{1,3}", re.ASCII), re.compile(r"\d{3}(?:[.,]\d+)?", re.ASCII)

_VERSION = re.compile(r"\d+(?:\.\d+){2,}", re.ASCII)

#: The forms of a number that can be read, by the character before its fraction.
_READABLE: Final = {
    mark: re.compile(
        rf"[-+]?(?:[1-9]\d{{0,2}}(?:{group}\d{{3}})+|\d+)?(?:{re.escape(mark)}\d+)?(?:[eE][-+]?\d+)?", re.ASCII
    )
    for mark, group in ((".", ","), (",", r"\."))
}

#: A digit of another script than ASCII's.
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")

#: Characters that stand for those of ASCII in numbers.
_SIGNS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\uff0b": "+", "\uff0e": ".", "\uff0c": ","})


class ReadNumber(NamedTuple):
    """What looks like a number in a text, and its value; None where it cannot be read."""

    text: str
    value: Decimal | None


def numbers_in(text: str, mark: DecimalMark = ".") -> Iterator[ReadNumber]:
    """Iterate over what looks like a number in a text, in its order; numbers that belong together cannot be read."""
    text = _plain_digits(text).replace("{,}", ",")
    begin, before = 0, ""
    for match, after in itertools.zip_longest(found := list(_NUMBER.finditer(text)), found[1:]):
        if after is not None and _is_one(text[match.end() : after.start()], match[0], after[0]):
            begin, before = begin if before else match.start(), match[0]
            continue
        if before:
            yield ReadNumber(text[begin : match.end()], None)
        elif mark == "," or not _VERSION.fullmatch(match[0].lstrip("+-")):
            yield ReadNumber(match[0], parse_number(match[0], mark))
        before = ""


def _is_one(between: str, number: str, following: str) -> bool:
    """Whether two numbers with this between them belong together; a space may group digits by three."""
    is_group = between == " " and bool(_GROUP.fullmatch(number) and _NEXT_GROUP.fullmatch(following))
    return is_group or _JOINT.fullmatch(between) is not None


def parse_number(text: str, mark: DecimalMark = ".") -> Decimal | None:
    """The exact number that a whole text represents; None where it is none or cannot be read for sure.

    Example::

        parse_number("1,234.5")  # Decimal("1234.5")
        parse_number("3,14")  # None
        parse_number("3,14", ",")  # Decimal("3.14")
    """
    digits = _plain_digits(text.strip())
    if not _READABLE[mark].fullmatch(digits):
        return None
    group = "," if mark == "." else "."
    try:
        number = Decimal(digits.replace(group, "").replace(mark, "."))
    except InvalidOperation:
        return None
    _, _, exponent = number.as_tuple()
    is_held = isinstance(exponent, int) and max(abs(exponent), abs(number.adjusted())) <= MAX_EXPONENT + len(digits)
    return number if is_held else None


def unreadable_number(text: str, mark: DecimalMark = ".") -> str:
    """Why a text is not read as a number, and the mend."""
    group, fix = (",", 'decimal: ","') if mark == "." else (".", 'decimal: "."')
    has_mark = (
        ""
        if not re.fullmatch(r"[-+\deE]*[.,][-+\deE.,]*", text)
        else f"; {group} groups digits by three; {fix} reads it otherwise"
    )
    return f"{text[:40]!r} cannot be read as a number{has_mark}"


def _plain_digits(text: str) -> str:
    """The text with the digits of all scripts, and full-width and typographic signs, as those of ASCII."""
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text.translate(_SIGNS))


def right_answers(expected: JsonValue) -> list[JsonValue]:
    """The right answers that a value names: the items of a list, or itself; none where it is null."""
    return expected if isinstance(expected, list) else [] if expected is None else [expected]


def answer_text(value: JsonValue) -> str:
    """A right answer as text: a text as it is, a number, true and false as JavaScript prints it, others as JSON.

    An integer that JavaScript could not hold keeps its digits.

    Example::

        answer_text(1.0)  # "1"
        answer_text(1e21)  # "1e+21"
        answer_text(True)  # "true"
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        is_exponential = abs(value) >= 10**21 and abs(value) < 10**309 and int(float(value)) == value
        if not is_exponential:
            return str(value)
    return _javascript_number(float(value))


def _javascript_number(number: float) -> str:
    """A number as ECMAScript's Number::toString prints it, in which Python has the same shortest digits."""
    digits = Decimal(repr(number)).normalize()
    if not number:
        return "0"
    return f"{digits:f}" if 1e-6 <= abs(number) < 1e21 else f"{digits:e}"


def same_json(value: JsonValue, expected: JsonValue) -> bool:
    """Whether two JSON values are equal; JSON's true is not 1, as it is in Python."""
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same_json(value[key], expected[key]) for key in expected)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same_json, value, expected))
    return isinstance(value, bool) is isinstance(expected, bool) and value == expected
