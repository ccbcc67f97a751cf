"""The choices of a case: their order, how they are shown under letters, and which one an answer names. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from string import ascii_uppercase
from typing import Final, NamedTuple

from pydantic import JsonValue

from quintain.graders import Case
from quintain_runner.spec.right_answers import right_answers

#: The names of the positions of choices.
LETTERS: Final = ascii_uppercase

#: What a target is told below the choices where its prompt does not show them itself.
ASKS_FOR_A_LETTER: Final = "Answer with the letter of one choice."

#: The names of templates that show the choices.
CHOICE_FIELDS: Final = frozenset({"choices", "lettered_choices"})

#: Marks around a text, and what ends a sentence: neither is part of a choice.
_MARKS: Final = " \t*_`\"'$"

_LETTER = re.compile(r"\(?\[?([A-Za-z])[)\].:]*")
_LETTER_AND_TEXT = re.compile(r"\(?\[?([A-Za-z])[)\].:]+\s*(.+)")

#: What says that an answer follows, and the rest of its line.
_ANNOUNCED = re.compile(
    r"\b(?:answer|(?:correct|right) (?:choice|option))\W{0,4}(?:(?:is|would be)\b[\s:*_]*|[:=][\s*_]*)(.+)",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\{(?:\\text\{)?([^{}]+)\}")

#: A letter before what explains it. Only a capital is one: "the answer is a city" names no choice.
_LETTER_AND_REASON = re.compile(r"\(?\[?([A-Z])[)\].:*_]*(?:[,;.]|\s+(?:because|since|as|for|-|\u2013|\u2014)\s).*")


class ReadChoice(NamedTuple):
    """The position of the choice that an answer names, from 0; None where none can be read, and why."""

    position: int | None
    problem: str | None = None


def lettered(choices: Sequence[str]) -> str:
    """The choices, each on a line after its letter."""
    return "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def with_ordered_choices(case: Case, seed: int | None) -> Case:
    """The case with its choices in the order of a seed and its id, and the texts of its right choices as its expected.

    None leaves them in the dataset's order. Raises `ValueError` for choices that cannot be told apart, and for an
    expected that is none of them.
    """
    if (choices := case.choices) is None:
        return case
    if case.is_conversation:
        raise ValueError("choices: a conversation has none; leave out turns or user")
    if len({_plain(choice) for choice in choices}) < len(choices):
        raise ValueError("choices: two of them are equal; each is given once")
    right = [_named_choice(one, choices) for one in right_answers(case.expected)]
    ordered = choices if seed is None else sorted(choices, key=lambda choice: _draw(seed, case.id, choice))
    expected: JsonValue = [*right] if isinstance(case.expected, list) else right[0] if right else None
    return case.model_copy(update={"choices": ordered, "expected": expected})


def _draw(seed: int, case_id: str, choice: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{case_id}\0{choice}".encode()).digest()


def _named_choice(expected: JsonValue, choices: Sequence[str]) -> str:
    """The text of the choice that a dataset's expected names. Raises `ValueError`."""
    named = _named_by(expected, choices) if isinstance(expected, str) else set()
    if len(named) != 1:
        last = LETTERS[len(choices) - 1]
        why = "is the letter of one choice and the text of another" if named else "is no choice"
        raise ValueError(f"expected: {expected!r} {why}; write a letter from A to {last}, or the text of a choice")
    return choices[named.pop()]


def read_choice(answer: str, choices: Sequence[str]) -> ReadChoice:
    """The choice that an answer names: by its letter or its text, alone, after "answer:", or on a line of its own.

    What names several is not decided, and nothing is guessed from a text around it.

    Example::

        read_choice("**Answer:** (b)", ["Rome", "Paris"])  # ReadChoice(1)
    """
    for places in (_whole, _announced, _letters_alone, _lines):
        named = {position for text in places(answer) for position in _named_by(text, choices)}
        if len(named) == 1:
            return ReadChoice(named.pop())
        if named:
            letters = ", ".join(LETTERS[position] for position in sorted(named))
            return ReadChoice(None, f"it names several choices ({letters})")
    return ReadChoice(None, "it names no choice by letter or text")


def _whole(answer: str) -> Iterator[str]:
    yield answer


def _announced(answer: str) -> Iterator[str]:
    yield from (match[1] for match in _BOXED.finditer(answer))
    for match in _ANNOUNCED.finditer(answer):
        yield match[1]
        if letter := _LETTER_AND_REASON.fullmatch(match[1].strip(_MARKS)):
            yield letter[1]


def _letters_alone(answer: str) -> Iterator[str]:
    yield from (line for line in answer.splitlines() if _LETTER.fullmatch(line.strip(_MARKS)))


def _lines(answer: str) -> Iterator[str]:
    for line in answer.splitlines():
        yield line
        if found := _LETTER_AND_TEXT.fullmatch(line.strip(_MARKS)):
            yield found[1]


def _named_by(text: str, choices: Sequence[str]) -> set[int]:
    """The positions that a whole text names: by a letter, a text, or a letter with its text."""
    bare, plain = text.strip(_MARKS + "\r\n"), _plain(text)
    named = {position for position, choice in enumerate(choices) if _plain(choice) == plain}
    letter = _LETTER.fullmatch(bare)
    if letter is None and (both := _LETTER_AND_TEXT.fullmatch(bare)):
        position = LETTERS.find(both[1].upper())
        # A letter before the text of another choice names both.
        texts = {index for index, choice in enumerate(choices) if _plain(choice) == _plain(both[2])}
        return named | texts | {position} if texts and position < len(choices) else named
    if letter is not None and (position := LETTERS.find(letter[1].upper())) < len(choices):
        named.add(position)
    return named


def _plain(text: str) -> str:
    """A text without marks, case, and the point at its end."""
    return " ".join(text.casefold().strip(_MARKS + "\r\n").removesuffix(".").strip(_MARKS).split())
