"""A recording: the store of a run, from which the run is made again without asking anybody."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from pydantic import Field, JsonValue

from quintain.contracts.invoke import FaultReply, JsonObject, Result
from quintain.contracts.message import Message
from quintain.contracts.session import Info, UsageLine
from quintain.errors import BadRequest, ConfigError, Fault
from quintain_runner.plan.address import Answers, NumberedRequest, NumberedVerdict, address_of
from quintain_runner.results.answer_store import ANSWERS_FILE_NAME, AnswerStore, StoredAnswer
from quintain_runner.results.row import Row, RowKey
from quintain_runner.untrusted import plain_line

#: The name under which a store has what is known of its run.
RUN_FACT: Final = "run"

#: Precedes the name of a program or function that graded, where a store has the name of a target.
VERDICT_PREFIX: Final = "grader "

#: A missing request is compared with so many of the recording, and so many of their differences are named.
_MAX_COMPARED, _MAX_DIFFERENCES = 2_000, 3

#: The members of a request that say of which trial it is.
_PLACE: Final = ("evalCaseId", "attempt", "repeat")

#: So much of a request is compared, and so much of a value is shown, in characters.
_MAX_COMPARED_CHARACTERS, _MAX_SHOWN_CHARACTERS = 2_000, 60


class RecordedRun(Message):
    """What a replay has to know of the recorded run.

    ``info`` is its last session with all calls and their usage. ``untold`` are the targets that are not told of cases.
    ``settings`` are the configured ones of targets. ``graders`` are the fingerprints of programs and functions that
    grade, by target and name; ``sessionless`` of them make no calls. ``left_out`` are the trials that got no row,
    because the budget was spent.
    """

    info: Info
    untold: list[str] = Field(default_factory=list)
    settings: dict[str, JsonObject] = Field(default_factory=dict)
    graders: dict[str, dict[str, str | None]] = Field(default_factory=dict)
    sessionless: list[str] = Field(default_factory=list)
    left_out: list[RowKey] = Field(default_factory=list)


class NotRecorded(Fault):
    """The recording has no answer to a request of a replayed run."""

    code = "not_recorded"


class Recording:
    """An open recording."""

    def __init__(self, store: AnswerStore, run: RecordedRun) -> None:
        self._store, self.run = store, run

    @property
    def path(self) -> Path:
        """Its file."""
        return self._store.path

    def result(self, asked: NumberedRequest, fingerprint: str | None) -> Result:
        """Return the answer to a request that a target with this fingerprint was recorded to give.

        Raises the recorded `Fault`, or `NotRecorded`.
        """
        is_told = asked.target not in self.run.untold
        address = address_of(asked.request, fingerprint, asked.number, sees_case=is_told)
        if (found := self._store.find_last(address)) is None:
            raise NotRecorded(self._missing(asked.target, asked.request.to_wire(), asked.number))
        if found.state.has_result:
            return Result.from_wire(found.reply)
        raise FaultReply.from_wire(found.reply).to_fault()

    def answers(self) -> Iterator[StoredAnswer]:
        """Iterate over all that was asked."""
        return self._store.answers()

    def verdict(self, asked: NumberedVerdict) -> bytes:
        """Return the recorded verdict of a program. Raises `NotRecorded`."""
        if (found := self._store.find_last(asked.address)) is None:
            raise NotRecorded(self._missing(f"{VERDICT_PREFIX}{asked.grader}", asked.content, asked.number))
        return found.reply

    def _missing(self, target: str, request: bytes, number: str) -> str:
        """What the nearest recorded request is, and what differs."""
        wanted = json.loads(request)
        matcher = difflib.SequenceMatcher(b=request.decode()[:_MAX_COMPARED_CHARACTERS], autojunk=False)

        def likeness(answer: StoredAnswer) -> tuple[int, float]:
            """How much of its place in the run is the same, and of its text."""
            found = json.loads(answer.request)
            matcher.set_seq1(answer.request.decode()[:_MAX_COMPARED_CHARACTERS])
            return sum(found.get(name) == wanted.get(name) for name in _PLACE), matcher.quick_ratio()

        nearest = max(islice(self._store.answers(target), _MAX_COMPARED), key=likeness, default=None)
        missing = f"the recording {self.path} has no answer to this request"
        if nearest is None:
            return f"{missing}, and nothing else that {target} was asked"
        return f"{missing}; the nearest that {target} was asked differs in {_differences(nearest, request, number)}"


def _differences(nearest: StoredAnswer, request: bytes, number: str) -> str:
    pairs = [
        f"{path}: {_shown(was)} is asked as {_shown(now)}"
        for path, was, now in _different_values(json.loads(nearest.request), json.loads(request))
        if path not in (*_PLACE, "turn.conversationId")
    ]
    if not pairs and nearest.number != number:
        pairs.append("its number among equal requests")
    more = [f"{len(pairs) - _MAX_DIFFERENCES} more"] if len(pairs) > _MAX_DIFFERENCES else []
    return "; ".join([*pairs[:_MAX_DIFFERENCES], *more]) or "the configuration of its target or grader"


def _different_values(was: JsonValue, now: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """Each place in which two values differ, with both."""
    if isinstance(was, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*was, *now)):
            yield from _different_values(was.get(name), now.get(name), f"{path}.{name}" if path else name)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from _different_values(one, other, f"{path}[{index}]")
    elif was != now:
        yield path, was, now


def _shown(value: JsonValue) -> str:
    return plain_line(json.dumps(value, ensure_ascii=False), max_length=_MAX_SHOWN_CHARACTERS)


class RecordedAnswers(Answers):
    """The answers of a recording, in place of calls."""

    def __init__(self, recording: Recording, fingerprints: Mapping[str, str | None]) -> None:
        self._recording, self._fingerprints = recording, fingerprints
        self.warnings: deque[str] = deque()

    def find(self, asked: NumberedRequest) -> Result | None:
        """Return the recorded answer; see `Answers.find`."""
        return self._recording.result(asked, self._fingerprints.get(asked.target))

    def find_verdict(self, asked: NumberedVerdict) -> tuple[bytes, bool] | None:
        """Return the recorded verdict of a program; see `Answers.find_verdict`."""
        return self._recording.verdict(asked), False

    def holds(self, row: Row) -> bool:
        """Return False: nothing is known of rows that were there before."""
        del row
        return False

    def write(self) -> None:
        """Write nothing: all is in the recording."""

    def finish(self) -> None:
        """Wait for nothing."""

    def write_run(self, recorded: RecordedRun) -> None:
        """Write nothing, as `write`."""


def recorded_session(info: Info, usage: Sequence[UsageLine], earlier_calls: int) -> Info:
    """Return the session of a run as one that had all its calls, with their usage, and no limit."""
    calls = earlier_calls + info.call_count
    return info.with_fields(
        usage=list(usage),
        call_count=calls,
        max_calls=max(calls, info.max_calls),
        running=0,
        reserved=0,
        cost=info.cost and info.cost.with_fields(left_usd=None, free_usd=None),
        parent_id=None,
        different_since=None,
    )


@contextlib.contextmanager
def open_recording(path: Path) -> Iterator[Recording]:
    """Open the recording of a run, by its folder or its file. Raises `ConfigError`."""
    file = path / ANSWERS_FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; name the folder of a run, or a recording of one")
    with contextlib.closing(AnswerStore.open(file, is_read_only=True)) as store:
        if (fact := store.fact(RUN_FACT)) is None:
            raise ConfigError(f"{file}: it has answers, and no run that ended; a cache is no recording")
        try:
            run = RecordedRun.from_wire(fact)
        except BadRequest as error:
            raise ConfigError(f"{file}: its run cannot be read ({error.message})") from None
        yield Recording(store, run)
