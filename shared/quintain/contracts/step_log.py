"""Cuts the steps of a call to `MAX_STEPS_BYTES`, whatever an agent put into them, as they come or at its end. No I/O.

The longest texts are shortened in their middle first, then whole steps are left out of the middle of the list. What
JSON does not have is written as text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic_core import from_json, to_json, to_jsonable_python

from quintain.contracts.agents import MAX_STEPS_BYTES, AgentStep, StepsCut
from quintain.contracts.values import replace_surrogates

#: No text is shortened to fewer bytes than these: whole steps are left out instead.
MIN_TEXT_BYTES: Final = 400

#: Of steps that are cut: the deepest nesting, the most items of a list or object, and the longest name in an object.
MAX_DEPTH, MAX_ITEMS, MAX_KEY_CHARACTERS = 32, 1000, 200

#: So many values are read of all steps, and of each at least the second number: lists may hold each other.
MAX_VALUES, MIN_VALUES = 200_000, 100

#: More steps than these cannot fit.
MAX_STEPS: Final = MAX_STEPS_BYTES // len('{"gen_ai.operation.name":""},')

#: An integer with more bits is written as text: not every parser reads it.
_MAX_INTEGER_BITS: Final = 256

#: A reply has so many brackets around its steps, and its parsers limit them together with those of the steps.
_BRACKETS = (b"[" * 16, b"]" * 16)

#: A step's field → its name on the wire.
_ALIASES: Final = {name: str(field.serialization_alias) for name, field in AgentStep.model_fields.items()}

#: The numbers that JSON does not have, by Python's names.
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

Json = dict[str, Any]

Step = TypeVar("Step")


def cut_steps(
    steps: Sequence[AgentStep], earlier: StepsCut | None = None, *, max_bytes: int = MAX_STEPS_BYTES
) -> tuple[list[AgentStep], StepsCut | None]:
    """Return the steps as they may be stored, and what was left out of them, None if nothing was.

    ``earlier`` is what was left out of these steps before.
    """
    if all(fitting := [_json_of(step) for step in steps]) and sum(map(len, fitting)) + len(fitting) < max_bytes:
        return list(steps), earlier
    cut = _Cutter(earlier)
    steps = cut.leave_out(steps, [1] * len(steps), MAX_STEPS)
    values = [cut.plain_step(step, max(MIN_VALUES, MAX_VALUES // len(steps))) for step in steps]
    limit = _text_limit(values, sum(map(_size_of, values)) + 1 - max_bytes)
    values = [cut.shortened(value, limit) for value in values]
    if sum(map(_size_of, values)) >= max_bytes:
        values = [cut.with_large_fields_as_texts(value, max_bytes // 4) for value in values]
    left = cut.leave_out(values, [_size_of(value) for value in values], max_bytes - 1)
    return [AgentStep.model_validate(value) for value in left], cut.result


class StepLog:
    """The steps of a call as they come: the first and the last, however many there are."""

    def __init__(self) -> None:
        self._head: list[AgentStep] = []
        self._tail: deque[tuple[AgentStep, int]] = deque()
        self._head_bytes = self._tail_bytes = 0
        self._cut = _Cutter(None)

    def add(self, step: AgentStep) -> None:
        """Add the next step."""
        if not (data := _json_of(step)):
            (step,), cut = cut_steps([step])
            self._cut.count(cut)
            data = _json_of(step)
        size = len(data) + 1
        if not self._tail and self._head_bytes + size <= MAX_STEPS_BYTES // 2:
            self._head.append(step)
            self._head_bytes += size
            return
        self._tail.append((step, size))
        self._tail_bytes += size
        while self._tail_bytes > MAX_STEPS_BYTES:
            self._tail_bytes -= self._tail.popleft()[1]
            self._cut.kept, self._cut.steps = len(self._head), self._cut.steps + 1

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """The steps that are kept."""
        return (*self._head, *(step for step, _ in self._tail))

    @property
    def cut(self) -> StepsCut | None:
        """What was left out of them."""
        return self._cut.result


def _json_of(step: AgentStep) -> bytes:
    """Return a step as it is in a reply; nothing if it is too large or too deep, or holds what JSON has not."""
    try:
        data = to_json(step, by_alias=True, exclude_none=True, inf_nan_mode="constants")
        if len(data) > MAX_STEPS_BYTES:
            return b""
        from_json(data.join(_BRACKETS), allow_inf_nan=False)
    except Exception:
        # Whatever the values of an agent raise when they are written: they are made plain then.
        return b""
    return data


class _Cutter:
    """Makes steps plain and small, and counts what it leaves out."""

    def __init__(self, earlier: StepsCut | None) -> None:
        self.kept = self.steps = self._characters = self._values = self._readable = 0
        self.count(earlier)

    def count(self, cut: StepsCut | None) -> None:
        """Add what was left out elsewhere."""
        if cut is not None:
            self.kept = cut.kept if cut.steps else self.kept
            self.steps += cut.steps
            self._characters += cut.characters
            self._values += cut.values

    @property
    def result(self) -> StepsCut | None:
        """What was left out; None if nothing was."""
        if not (self.steps or self._characters or self._values):
            return None
        return StepsCut(kept=self.kept, steps=self.steps, characters=self._characters, values=self._values)

    def plain_step(self, step: AgentStep, readable: int) -> Json:
        """Return a step as JSON has it, with texts for what it has not; ``readable`` is how many values are read."""
        self._readable = readable
        return {_ALIASES[name]: self._plain(value, 0) for name, value in step if value is not None}

    def _plain(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return replace_surrogates(str.__str__(value))
        if value is None or isinstance(value, int | float):
            return self._plain_number(value)
        if depth > MAX_DEPTH:
            return self._left_out("nested too deeply")
        if isinstance(value, Mapping | list | tuple):
            plain = self._plain_object if isinstance(value, Mapping) else self._plain_list
            return plain(value, depth)
        try:
            known = to_jsonable_python(value, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")
        except Exception:
            # Whatever the value of an agent raises when it is written.
            return self._left_out(type(value).__name__)
        return self._plain(known, depth + 1)

    def _plain_number(self, value: float | None) -> float | str | None:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() <= _MAX_INTEGER_BITS else self._left_out("an integer")
        return float(value) if math.isfinite(value) else _NOT_FINITE[str(float(value))]

    def _plain_object(self, value: Any, depth: int) -> Json:
        most, plain = self._take(len(value)), Json()
        for index, (key, item) in enumerate(value.items()):
            if index == most:
                plain["…"] = self._left_out(f"{len(value) - most:,} fields")
                break
            name = replace_surrogates(key if type(key) is str else str(self._plain(key, depth)))
            if len(name) > MAX_KEY_CHARACTERS:
                # With its index, because two long names may begin alike.
                cut = len(name) - MAX_KEY_CHARACTERS
                name = f"{name[:MAX_KEY_CHARACTERS]}…[{cut:,} characters cut from the name of field {index}]"
                self._characters += cut
            plain[name] = self._plain(item, depth + 1)
        return plain

    def _plain_list(self, value: Any, depth: int) -> list[Any]:
        if (most := self._take(len(value))) == len(value):
            return [self._plain(item, depth + 1) for item in value]
        head, tail = value[: most - most // 2], value[len(value) - most // 2 :]
        note = self._left_out(f"{len(value) - most:,} items")
        return [*(self._plain(one, depth + 1) for one in head), note, *(self._plain(one, depth + 1) for one in tail)]

    def _take(self, count: int) -> int:
        """Return how many of so many items may be read."""
        taken = min(count, MAX_ITEMS, max(0, self._readable))
        self._readable -= taken
        return taken

    def _left_out(self, what: str) -> str:
        self._values += 1
        return f"[left out: {what[:MAX_KEY_CHARACTERS]}]"

    def shortened(self, step: Json, limit: int) -> Json:
        """Return a plain step with texts of at most so many bytes."""
        return {name: self._short(value, limit) for name, value in step.items()}

    def with_large_fields_as_texts(self, step: Json, max_bytes: int) -> Json:
        """Return a step of which the fields that are large, though no text of theirs is, are shortened JSON texts."""
        kept = dict(step)
        for name, value in step.items():
            if not isinstance(value, str) and len(data := to_json(value)) > max_bytes:
                text = self._short_text(data.decode(), max_bytes)
                is_messages = name == _ALIASES["messages"]
                kept[name] = [{"parts": [{"type": "text", "content": text}]}] if is_messages else text
        return kept

    def _short(self, value: Any, limit: int) -> Any:
        if isinstance(value, str):
            return self._short_text(value, limit)
        if isinstance(value, dict):
            return {key: self._short(item, limit) for key, item in value.items()}
        return [self._short(item, limit) for item in value] if isinstance(value, list) else value

    def _short_text(self, text: str, limit: int) -> str:
        if len(text) * 6 + 2 <= limit or (size := len(to_json(text))) <= limit:
            return text
        kept = len(text) * (limit - 50) // size
        while True:
            cut, end = len(text) - kept, kept // 2
            short = f"{text[: kept - end]}…[{cut:,} characters cut]…{text[len(text) - end :]}"
            if kept <= 0 or len(to_json(short)) <= limit:
                self._characters += cut
                return short
            kept = kept * 9 // 10

    def leave_out(self, steps: Sequence[Step], sizes: Sequence[int], room: int) -> Sequence[Step]:
        """Return these steps without some of the middle, so that the others fit; around a gap that is there already."""
        if sum(sizes) <= room:
            return steps
        gap = (self.kept, self.kept) if self.steps else (len(steps), 0)
        head, tail, used = 0, len(steps), 0
        while head < gap[0] and used + sizes[head] <= room // 2:
            used += sizes[head]
            head += 1
        while tail > max(head, gap[1]) and used + sizes[tail - 1] <= room:
            tail -= 1
            used += sizes[tail]
        self.kept, self.steps = head, self.steps + tail - head
        return [*steps[:head], *steps[tail:]]


def _size_of(step: Json) -> int:
    """Return the bytes of a step in a list."""
    return len(to_json(step)) + 1


def _text_limit(steps: Sequence[Json], excess: int) -> int:
    """Return the length, in bytes of JSON, to which the longest texts are shortened so that so many bytes go."""
    if excess <= 0:
        return MAX_STEPS_BYTES
    lengths = sorted((len(to_json(text)) for step in steps for text in _texts(step)), reverse=True)
    total = 0
    for count, (length, following) in enumerate(zip(lengths, [*lengths[1:], 0], strict=True), start=1):
        total += length
        if (limit := (total - excess) // count) >= following:
            return max(limit, MIN_TEXT_BYTES)
    return MIN_TEXT_BYTES


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
