"""What the page of a case shows: what was asked, and each answer beside the others. No I/O."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import JsonValue

from quintain.contracts.invoke import ChatMessage, OutputMessage
from quintain_runner.graders.judge_request import sent_request
from quintain_runner.results.counts import has_cut_answer
from quintain_runner.results.row import GraderRow, JudgeUsed, Row, RowCase
from quintain_view.index_schema import Outcome, outcome_of
from quintain_view.text import (
    ShownMessage,
    ShownText,
    TextSpan,
    json_text,
    one_line,
    shown,
    shown_messages,
    word_difference,
)
from quintain_view.timeline import MAX_SHOWN_STEPS, AnswerTimeline, answer_timeline

OUTCOME_WORDS = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "failed",
    Outcome.ERROR: "error",
    Outcome.IN_DOUBT: "in doubt",
    Outcome.UNCOMPARED: "not compared yet",
}

#: The variables that a copied command reads; no page and no file holds a token.
_CURL = (
    'curl "$QUINTAIN_GATEWAY_URL/invoke" -H "Authorization: Bearer $QUINTAIN_SESSION_TOKEN" '
    "-H 'Content-Type: application/json' -d {body}"
)


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call of a target or of a grader: whether it was charged, and what else ``calls.jsonl`` has of it."""

    title: str
    fields: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CaseOrigin:
    """Where a case is from: the paths of its evaluation file and of the results, and what those say beside its rows.

    ``calls`` are those of ``calls.jsonl`` by request id and by session id, ``judges`` those of ``run.json``.
    """

    evaluation: str = ""
    folder: str = ""
    calls: Mapping[str, list[ShownCall]] = field(default_factory=dict)
    judges: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """What one grader said of an answer; of a jury also what each judge said.

    ``prompt`` makes what a judge was sent: nothing where that is not known.
    """

    name: str
    outcome: str
    grader: GraderRow
    called: list[ShownCall]
    judge: str
    prompt: Callable[[], list[ShownMessage]]
    notes: list[str]
    votes: list[ShownVerdict]


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One trial of a case: its answer, and what graders said."""

    row: Row
    outcome: str
    messages: list[ShownMessage]
    difference: list[TextSpan]
    timeline: AnswerTimeline | None
    verdicts: list[ShownVerdict]
    called: list[ShownCall]
    facts: list[tuple[str, str]]
    ask_again: str
    raw_id: str

    @property
    def curl(self) -> str | None:
        """The call of this trial as a command line; None if the row does not hold what was asked."""
        return _curl(self.row)

    @property
    def raw(self) -> ShownText:
        """The row as indented JSON."""
        return shown(json.dumps(json.loads(self.row.to_line()), indent=2, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class CasePage:
    """The page of one case.

    ``strip`` has the answers of each column, each with its number. ``same_as`` says of an answer, by its number, which
    earlier repeat gave the same. ``first_open`` is the number of the answer that is open where there are too many to
    open all: the first that did not pass, or the first.
    """

    case_id: str
    question: ShownText | None
    system_prompt: ShownText | None
    messages: list[ShownMessage]
    expected: ShownText | None
    answers: list[ShownAnswer]
    strip: dict[str, list[tuple[int, ShownAnswer]]]
    same_as: dict[int, int]
    first_open: int
    is_expected_text: bool
    grade_again: str

    def is_open(self, number: int) -> bool:
        """Whether the answer of this number is open at first."""
        return len(self.answers) <= MAX_OPEN_ANSWERS or number == self.first_open


#: So many answers are open at first; of more, one.
MAX_OPEN_ANSWERS = 3


#: How many characters of a case's id its page shows.
MAX_ID_CHARACTERS = 500


def case_page(case_id: str, rows: Sequence[Row], origin: CaseOrigin, max_steps: int = MAX_SHOWN_STEPS) -> CasePage:
    """The page of a case with these rows; ``max_steps`` of each answer are shown."""
    case = next((row.case for row in rows if row.case is not None), None)
    expected = None if case is None or case.expected is None else json_text(case.expected)
    answers = [_shown_answer(row, origin, max_steps) for row in rows]
    strip = {
        column: [(number, one) for number, one in enumerate(answers) if one.row.column == column]
        for column in dict.fromkeys(answer.row.column for answer in answers)
    }
    return CasePage(
        case_id=one_line(case_id, MAX_ID_CHARACTERS),
        question=None if case is None or case.question is None else shown(case.question),
        system_prompt=None if case is None or case.system_prompt is None else shown(case.system_prompt),
        messages=[] if case is None else shown_messages((*(case.messages or ()), *_planned_turns(case))),
        expected=None if expected is None else shown(expected),
        answers=answers,
        strip=strip,
        same_as={number: earlier for repeats in strip.values() for number, earlier in _same_answers(repeats)},
        first_open=next((number for number, one in enumerate(answers) if one.outcome != "passed"), 0),
        is_expected_text=case is not None and isinstance(case.expected, str),
        grade_again=shlex.join(["quintain", "rescore", origin.folder]),
    )


def _same_answers(repeats: Iterable[tuple[int, ShownAnswer]]) -> Iterator[tuple[int, int]]:
    """The numbers of answers that say the same as an earlier repeat of their column, with its number."""
    first: dict[object, int] = {}
    for number, answer in repeats:
        if answer.row.output is not None and not answer.messages and answer.timeline is None:
            earlier = first.setdefault((answer.row.output, answer.row.error is None), number)
            if earlier != number:
                yield number, earlier


def _ask_again(row: Row, origin: CaseOrigin) -> str:
    """The command that asks a case again: in its folder a row that failed, one with an answer only in another one."""
    folder = origin.folder if outcome_of(row) is Outcome.ERROR else f"{origin.folder}-again"
    words = ["quintain", "run", origin.evaluation, "--output", folder, "--target", row.target, "--case", row.case_id]
    return shlex.join(words)


def _shown_answer(row: Row, origin: CaseOrigin, max_steps: int) -> ShownAnswer:
    messages = row.answer.messages if row.answer is not None else None
    return ShownAnswer(
        row=row,
        outcome=OUTCOME_WORDS[outcome_of(row)],
        messages=shown_messages((*_turn_messages(row), *(messages or ()))),
        difference=_difference(row),
        timeline=answer_timeline(row.answers, max_steps),
        verdicts=[_shown_verdict(name, grader, row, origin, name) for name, grader in row.graders.items()],
        called=_target_calls(row, origin),
        facts=list(_facts(row)),
        ask_again=_ask_again(row, origin),
        raw_id=f"{row.column}#{row.repeat}",
    )


def _difference(row: Row) -> list[TextSpan]:
    """How the answer differs from an expected text; nothing of an expected value that is no text."""
    expected = None if row.case is None else row.case.expected
    return word_difference(expected, row.output) if isinstance(expected, str) and row.output is not None else []


def target_call_ids(row: Row) -> list[str]:
    """The ids of the target's calls that the row names."""
    ids = [answer.request_id for answer in row.answers]
    ids += [] if row.error is None else [row.error.request_id]
    return [one for one in dict.fromkeys(ids) if one]


def _calls_of(ids: Sequence[tuple[str, str | None]], words: str, origin: CaseOrigin) -> list[ShownCall]:
    """The calls of these ids, each with its name; where no list of calls is at hand, what the row says of them."""
    named = [(name, one) for name, one in ids if one is not None]
    known = [call for _, one in named for call in origin.calls.get(one, ())]
    return known or [ShownCall(words, list(named))]


def _target_calls(row: Row, origin: CaseOrigin) -> list[ShownCall]:
    if outcome_of(row) is Outcome.IN_DOUBT:
        words = "in doubt: without an answer, and may have been charged"
    elif not row.calls:
        words = "replayed: nothing was charged" if row.has_answer else "not charged"
    else:
        words = f"charged: {row.calls} call{'s' * (row.calls != 1)}, those of graders included"
    return _calls_of([("request id", one) for one in target_call_ids(row)], words, origin)


def _planned_turns(case: RowCase) -> Iterator[ChatMessage]:
    """What the user of a conversation says later, or wants."""
    if case.user is not None:
        yield ChatMessage(role="user", content=f"({case.user.target} speaks; its goal: {case.user.goal})")
    for text in case.turns or ():
        yield ChatMessage(role="user", content=text)


def _turn_messages(row: Row) -> Iterator[ChatMessage | OutputMessage]:
    """What was said in a conversation before its last answer."""
    turns = row.turns()
    for number, turn in enumerate(turns, start=1):
        if turn.question is not None:
            yield ChatMessage(role="user", content=turn.question)
        if number < len(turns) or row.output is None:
            told = turn.answer.messages if turn.answer is not None else None
            yield from told or [OutputMessage(content=turn.output or "")]


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    yield "duration", f"{row.duration_ms:,.0f} ms"
    yield "tokens", f"{row.token_usage.input:,} in, {row.token_usage.output:,} out"
    if row.tries > 1:
        yield "tries", f"{row.tries}"
    if has_cut_answer(row):
        yield "cut", "at max_tokens"
    if (held := row.conversation) is not None:
        ended = ", ended by the simulated user" if held.stopped else ""
        again = f"; begun {held.attempts} times, {held.lost_turns} turns lost" if held.attempts > 1 else ""
        yield "turns", f"{len(held.turns)}{ended}{again}"
    answer = row.answer
    if answer is not None:
        optional = {"model": answer.model, "finish reason": answer.finish_reason}
        yield from ((name, value) for name, value in optional.items() if value)
    if row.target_fingerprint is not None:
        yield "target's fingerprint", row.target_fingerprint
    if row.error is not None and row.error.provider_error is not None:
        yield "provider's error", json.dumps(dataclasses.asdict(row.error.provider_error), ensure_ascii=False)


def _shown_verdict(name: str, grader: GraderRow, row: Row, origin: CaseOrigin, recorded: str) -> ShownVerdict:
    """What a grader said, or a vote of it; ``recorded`` is the name of the grader."""
    ids = [("request id", grader.request_id), ("session", grader.session_id)]
    words = "call" if grader.calls == 1 else f"{grader.calls} calls"
    outcome = "error" if grader.error is not None else "passed" if grader.passed else "failed"
    if grader.tied:
        outcome = "tied"
    used = grader.judge
    return ShownVerdict(
        name=name,
        outcome=outcome,
        grader=grader,
        called=_calls_of(ids, words, origin) if grader.request_id or grader.session_id else [],
        judge=_judge_text(grader),
        prompt=partial(_shown_prompt, origin.judges.get(recorded), row, used),
        notes=list(_judge_notes(grader, row.target)),
        votes=[_shown_verdict(judge, vote, row, origin, recorded) for judge, vote in grader.votes.items()]
        + [_shown_verdict(part, one, row, origin, part) for part, one in grader.parts.items()],
    )


def _shown_prompt(recorded: JsonValue, row: Row, used: JudgeUsed | None) -> list[ShownMessage]:
    sent = None if used is None else sent_request(recorded, row, used)
    return [] if sent is None else shown_messages(sent.conversation())


def _judge_text(grader: GraderRow) -> str:
    """Who judged, and with which settings."""
    if (judge := grader.judge) is None:
        return ""
    settings = [f"{name} {value}" for name, value in (judge.settings or {}).items()]
    ignored = [f"without {name}" for name in judge.ignored or ()]
    details = ", ".join([*([judge.model] if judge.model else []), *settings, *ignored])
    return f"{judge.target} ({details})" if details else judge.target


def _judge_notes(grader: GraderRow, target: str) -> Iterator[str]:
    """What to know of a judge before its verdict is believed."""
    if grader.judge is not None and grader.judge.target == target:
        yield "The judge is the target itself, and models favour their own answers."
    for section, count in grader.left_out.items():
        yield f"The judge was not shown {count:,} characters of {section}."
    if grader.judge is not None and grader.judge.reply_cut:
        yield f"The row does not hold the last {grader.judge.reply_cut:,} characters of the judge's reply."


def _curl(row: Row) -> str | None:
    case = row.case
    if case is None or (case.question is None and not case.messages):
        return None
    body = {"target": row.target, "evalCaseId": row.case_id, **json.loads(case.to_wire())}
    for name in ("expected", "turns", "user"):
        body.pop(name, None)
    # ASCII: what a reader cannot see in the page must not be pasted into a terminal.
    return _CURL.format(body=shlex.quote(json.dumps(body)))
