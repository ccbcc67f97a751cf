"""A recording as lines of JSON, to read, to compare and to keep: written without secrets, and read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from pydantic import JsonValue

from quintain.config.secrets import redact_secrets
from quintain.contracts.api_request import ApiRequest, json_text, read_api_request
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import Message
from quintain.errors import BadRequest, ConfigError
from quintain.runtime.text_files import InvalidLine, text_lines
from quintain_runner.engine.recording import RUN_FACT, VERDICT_PREFIX, RecordedRun, Recording
from quintain_runner.plan.address import NumberedVerdict, address_of
from quintain_runner.results.answer_store import AnswerStore, AskingState, StoredAnswer

#: How many lines are written into a store in one transaction.
_BATCH: Final = 500

_BEGIN_OF_END: Final = re.compile(r'\s*\{\s*"answers"\s*:')


class RecordingLine(Message):
    """The first line of a recording: its run."""

    version: Literal[1] = 1
    run: RecordedRun


class AskingLine(Message):
    """A request and how it ended: with a result, the verdict of a program, or the fault of one that failed."""

    target: str
    fingerprint: str | None = None
    number: str
    asking: int
    request: JsonValue
    reply: JsonValue
    state: AskingState = AskingState.ANSWERED
    answered_at: int


class EndLine(Message):
    """The last line of a recording: how many requests stand before it."""

    answers: int


def lines_of(recording: Recording) -> Iterator[str]:
    """Write a recording as lines of JSON; what looks like a secret is replaced."""
    yield redact_secrets(RecordingLine(run=recording.run).to_wire().decode())
    count = 0
    for answer in recording.answers():
        count += 1
        line = AskingLine(
            target=answer.target,
            fingerprint=answer.fingerprint,
            number=answer.number,
            asking=answer.asking,
            request=json.loads(answer.request),
            reply=json.loads(answer.reply),
            state=answer.state,
            answered_at=answer.answered_at,
        )
        yield redact_secrets(line.to_wire().decode())
    yield EndLine(answers=count).to_wire().decode()


def read_lines(lines: Iterable[bytes], where: Path, store: AnswerStore) -> int:
    """Read a recording into a store, with the addresses that its requests have now; return how many there were.

    Raises `ConfigError`, which names the line, or says that the recording was cut.
    """
    run, answers, count, told = None, list[StoredAnswer](), 0, None
    for number, line in _lines_with_text(lines, where):
        try:
            if run is None:
                run = RecordingLine.from_wire(line).run
            elif _BEGIN_OF_END.match(line):
                told = EndLine.from_wire(line).answers
            else:
                answers.append(_stored(AskingLine.from_wire(line), run))
        except BadRequest as error:
            raise ConfigError(f"{where}: line {number} is none of a recording ({error.message})") from None
        if len(answers) == _BATCH:
            count += len(answers)
            store.write(answers, now=0)
            answers.clear()
    if run is None:
        raise ConfigError(f"{where}: it is empty")
    count += len(answers)
    if told != count:
        end = "no last line" if told is None else f"{count:,} requests, and was written with {told:,}"
        raise ConfigError(f"{where}: it is not whole: it has {end}; export the recording again")
    store.write(answers, now=0)
    store.write_fact(RUN_FACT, run.to_wire().decode())
    return count


def _lines_with_text(lines: Iterable[bytes], where: Path) -> Iterator[tuple[int, str]]:
    try:
        yield from ((number, line) for number, line in text_lines(lines) if line.strip())
    except InvalidLine as error:
        raise ConfigError(f"{where}: line {error.line}: {error}") from None


def _stored(line: AskingLine, run: RecordedRun) -> StoredAnswer:
    """The stored form of a line, with its address. Raises `BadRequest`."""
    if line.target.startswith(VERDICT_PREFIX):
        request = json.dumps(line.request, sort_keys=True).encode()
        grader = line.target.removeprefix(VERDICT_PREFIX)
        verdict = NumberedVerdict(grader, line.fingerprint, request, line.number, line.asking, is_cacheable=False)
        address = verdict.address
    else:
        wire = json.dumps(line.request).encode()
        asked: ApiRequest | InvokeRequest
        if (in_words_of_api := read_api_request(wire)) is not None:
            # The text of its body is as graders write it.
            asked = in_words_of_api._replace(body=json_text(json.loads(in_words_of_api.body.text)))
        else:
            asked = InvokeRequest.from_wire(wire)
        address = address_of(asked, line.fingerprint, line.number, sees_case=line.target not in run.untold)
        request = asked.to_wire()
    return StoredAnswer(
        address=address,
        asking=line.asking,
        number=line.number,
        target=line.target,
        fingerprint=line.fingerprint,
        request=request,
        reply=json.dumps(line.reply).encode(),
        state=line.state,
        answered_at=line.answered_at,
    )
