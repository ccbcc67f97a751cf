"""One row of ``results.jsonl`` (``docs/protocol/results.md``): question, answer, verdicts and outcome. No I/O."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import AliasChoices, Field, JsonValue

from quintain.contracts.agents import AgentStep, StepsCut
from quintain.contracts.invoke import NO_TOKENS, ChatMessage, Result
from quintain.contracts.message import Message
from quintain.errors import Fault, ProviderError
from quintain.graders import Case, SimulatedUser
from quintain_runner.results.agent_steps import steps_of
from quintain_runner.results.answer import (
    Answer,
    ConversationRow,
    StoredStep,
    StoredUsage,
    TurnRow,
    is_none,
    is_one,
    is_zero,
    steps_of_turns,
)
from quintain_runner.results.pairwise import PairwiseRow


class RowCase(Message):
    """What was asked, and what the answer was compared with."""

    question: str | None = Field(default=None, exclude_if=is_none)
    messages: list[ChatMessage] | None = Field(default=None, exclude_if=is_none)
    system_prompt: str | None = Field(default=None, exclude_if=is_none)
    expected: JsonValue = Field(default=None, exclude_if=is_none)
    turns: list[str] | None = Field(default=None, exclude_if=is_none)
    user: SimulatedUser | None = Field(default=None, exclude_if=is_none)
    choices: list[str] | None = Field(default=None, exclude_if=is_none)

    @classmethod
    def of(cls, case: Case) -> RowCase:
        """The stored form of a case."""
        return cls.unchecked(**{name: getattr(case, name) for name in cls.model_fields})


#: The error code of a row whose target answered but one of whose graders returned no verdict.
GRADER_FAILED = "grader_failed"

#: The error's code where a worker answered with another configuration than the one that was asked for.
TARGET_CHANGED = "target_changed"


def target_changed_text(target: str) -> str:
    """The error of an answer that another configuration gave than the one that was asked for."""
    return (
        f"The worker that answered serves {target} with another configuration than the one this run began with; the "
        "next run asks again. Where this repeats, start every worker of it with the same files"
    )


#: The error code of a row whose grader failed when the run's call budget was spent.
BUDGET_EXHAUSTED = "budget_exhausted"


class RowStatus(StrEnum):
    """The status of a row.

    A resumed run executes the trials of ``error`` rows again. The answer of an ``uncompared`` row has no opponent yet
    and no other score. ``inDoubt``: a call of the target or of a grader was charged, or perhaps, and has no answer.
    """

    GRADED = "graded"
    UNCOMPARED = "uncompared"
    ERROR = "error"
    IN_DOUBT = "inDoubt"


class RowKey(NamedTuple):
    """The key of a row; of several rows with the same key one is current (see `ResumeState`)."""

    case_id: str
    target: str
    repeat: int
    prompt: str | None = None


_SEPARATOR = " · "


def column_name(target: str, prompt: str | None) -> str:
    """The name of a target, under one of several prompts, in every table: ``bot · brief``.

    Targets' names have no spaces, so that no two columns have one name.
    """
    return target if prompt is None else f"{target}{_SEPARATOR}{prompt}"


def criterion_name(grader: str, criterion: str) -> str:
    """The name of a rubric's criterion in every table: ``quality · right``."""
    return f"{grader}{_SEPARATOR}{criterion}"


def split_column(name: str) -> tuple[str, str | None]:
    """The target and the prompt of a column."""
    target, separator, prompt = name.partition(_SEPARATOR)
    return target, prompt if separator else None


def column_names(targets: Iterable[str], prompts: Iterable[str]) -> list[str]:
    """The columns of every table: each target under each prompt, or each target if there are no prompts."""
    names: list[str | None] = [*prompts]
    return [column_name(target, prompt) for target in targets for prompt in names or [None]]


#: The field is ``pass`` in JSON, which is a reserved word in Python.
_PASS = AliasChoices("pass", "passed")


class Check(Message):
    """One criterion that a grader checked: its description, whether it passed, and optionally a score, reason and
    evidence. ``weight`` is that of a rubric's criterion, whose score is a column of every table.
    """

    id: str | None = Field(default=None, exclude_if=is_none)
    text: str
    passed: bool = Field(validation_alias=_PASS, serialization_alias="pass")
    score: float | None = Field(default=None, exclude_if=is_none)
    reason: str | None = Field(default=None, exclude_if=is_none)
    evidence: str | None = Field(default=None, exclude_if=is_none)
    weight: float | None = Field(default=None, exclude_if=is_none)


class JudgeUsed(Message):
    """Who gave a verdict, how it was asked, and what it replied.

    ``settings`` are the configured ones of its target; None where the run does not know them, as on a fleet.
    ``ignored`` names those that the provider could not honour. ``request`` is the hash of what it was sent. ``reply``
    is its text, without the last ``reply_cut`` characters. ``grader`` is the specification of a case's own judge.
    """

    target: str
    model: str | None = Field(default=None, exclude_if=is_none)
    settings: dict[str, JsonValue] | None = None
    ignored: list[str] | None = Field(default=None, exclude_if=is_none)
    request: str | None = Field(default=None, exclude_if=is_none)
    reply: str | None = Field(default=None, exclude_if=is_none)
    reply_cut: int = Field(default=0, exclude_if=is_zero)
    grader: JsonValue = Field(default=None, exclude_if=is_none)


class ChoiceRow(Message):
    """What was read of an answer to a multiple choice: the ``position`` of its choice ``of`` so many, from 0, or None
    where none could be read; and the positions that are ``right``."""

    position: int | None = None
    right: list[int]
    of: int


class GraderRow(Message):
    """The result of one grader, or the vote of one judge of a jury: a verdict, or an error.

    ``calls`` counts the calls that it made; of a judge those that it made for this answer before too.
    ``score`` is from 0 to 1; ``details`` is any JSON object.
    ``fingerprint`` is the grader's fingerprint, or None if it is not known. ``weight`` is that of its score in the
    row's mean; a grader of weight 0 is reported, and counts neither in the score nor in the pass. ``generation`` counts
    the times that the run was graded again on purpose. ``request_id`` is that of a judge's call, and ``session_id`` the
    session of a program's calls. ``judge`` is who answered it.
    ``left_out`` are the characters that a judge was not shown, by the section that was too long.
    ``in_doubt``: a judge's call may have been charged without an answer. ``votes`` are those of a jury, by judge; a
    vote with an error is missing. ``tied``: as many votes pass the answer as fail it, and none is missing.
    ``comparisons`` are those of a pairwise grader, and ``choice`` is that of a multiple choice.
    ``parts`` are the verdicts of the graders of a list that made calls.
    """

    score: float | None = None
    passed: bool | None = Field(default=None, validation_alias=_PASS, serialization_alias="pass")
    reason: str | None = None
    checks: list[Check] = Field(default_factory=list)
    details: dict[str, JsonValue] | None = Field(default=None, exclude_if=is_none)
    error: str | None = Field(default=None, exclude_if=is_none)
    calls: int = 0
    fingerprint: str | None = Field(default=None, exclude_if=is_none)
    generation: int = Field(default=0, exclude_if=is_zero)
    request_id: str | None = Field(default=None, exclude_if=is_none)
    judge: JudgeUsed | None = Field(default=None, exclude_if=is_none)
    left_out: dict[str, int] = Field(default_factory=dict, exclude_if=operator.not_)
    session_id: str | None = Field(default=None, exclude_if=is_none)
    weight: float = Field(default=1.0, exclude_if=lambda weight: weight == 1.0)
    in_doubt: bool = Field(default=False, exclude_if=is_zero)
    tied: bool = Field(default=False, exclude_if=is_zero)
    votes: dict[str, GraderRow] = Field(default_factory=dict, exclude_if=operator.not_)
    parts: dict[str, GraderRow] = Field(default_factory=dict, exclude_if=operator.not_)
    comparisons: list[PairwiseRow] | None = Field(default=None, exclude_if=is_none)
    choice: ChoiceRow | None = Field(default=None, exclude_if=is_none)

    @property
    def missing_votes(self) -> list[GraderRow]:
        """The votes of a jury, or of juries in a list, that are missing."""
        missing = [vote for vote in self.votes.values() if vote.error is not None]
        return missing + [vote for part in self.parts.values() if part.error is None for vote in part.missing_votes]

    def without_content(self) -> GraderRow:
        """The verdict without what it says of the answer."""
        votes, parts = (
            {name: row.without_content() for name, row in rows.items()} for rows in (self.votes, self.parts)
        )
        checks = [check.with_fields(reason=None, evidence=None) for check in self.criteria.values()]
        judge = self.judge and self.judge.with_fields(request=None, reply=None, reply_cut=0, grader=None)
        return self.with_fields(reason=None, checks=checks, details=None, votes=votes, parts=parts, judge=judge)

    @property
    def criteria(self) -> dict[str, Check]:
        """The checks that are criteria of a rubric, by their ids."""
        return {check.id: check for check in self.checks if check.id is not None and check.weight is not None}


class RowError(Message):
    """Why a row has no score: the code of a fault, or `GRADER_FAILED` or `BUDGET_EXHAUSTED`, and a sentence.

    ``request_id`` is that of the target's call, if that call ended with the fault, and ``provider_error`` what the
    provider itself said. ``steps`` are what an agent did before it, and ``steps_cut`` what was left out of them;
    ``cost_usd`` is what its calls cost.
    """

    code: str
    error: str
    request_id: str | None = Field(default=None, exclude_if=is_none)
    provider_error: ProviderError | None = Field(default=None, exclude_if=is_none)
    steps: list[StoredStep] | None = Field(default=None, exclude_if=is_none)
    steps_cut: StepsCut | None = Field(default=None, exclude_if=is_none)
    cost_usd: float | None = Field(default=None, exclude_if=is_none)

    @classmethod
    def of_change(cls, target: str, planned: str | None, result: Result, request_id: str) -> RowError | None:
        """The error of an answer that another configuration gave than the planned one; None if it is that one."""
        if planned is None or result.target_fingerprint == planned:
            return None
        return cls(code=TARGET_CHANGED, error=target_changed_text(target), request_id=request_id)

    @classmethod
    def of_call(cls, fault: Fault, request_id: str, message: str | None = None) -> RowError:
        """The error of a call of the target, with another message than the fault's if one is given."""
        return cls(
            **{name: getattr(fault, name) for name in ("code", "provider_error", "steps_cut", "cost_usd")},
            error=fault.message if message is None else message,
            request_id=request_id,
            steps=list(fault.steps) or None,
        )


class RowFingerprints(Message):
    """What made a row: of its case what was asked (``input``) and what graders compare with (``grading``), and the
    configurations of the target, and of the one that plays its user; None where a worker reported none. Each grader has
    its own in its `GraderRow`."""

    input: str
    grading: str
    target: str | None = None
    user: str | None = Field(default=None, exclude_if=is_none)


class Row(Message):
    """One row. ``durationMs`` is the target's. ``tries`` is absent where it is 1, and ``prompt`` where the case was
    asked as it is. ``cached`` answers came from the cache: no calls now, and ``saved_usd`` US dollars when they were.

    ``tags`` are the values of the fields that ``by`` in the evaluation file names. Rows with ``contentOmitted`` have
    fingerprints, scores and counts, and no texts.
    """

    schema_version: Literal[2] = 2
    case_id: str
    target: str
    prompt: str | None = Field(default=None, exclude_if=is_none)
    repeat: int
    status: RowStatus
    case: RowCase | None = Field(default=None, exclude_if=is_none)
    output: str | None = None
    score: float | None = None
    graders: dict[str, GraderRow] = Field(default_factory=dict)
    error: RowError | None = Field(default=None, exclude_if=is_none)
    calls: int = 0
    token_usage: StoredUsage = NO_TOKENS
    duration_ms: float = 0
    tries: int = Field(default=1, exclude_if=is_one)
    cached: int = Field(default=0, exclude_if=is_zero)
    saved_usd: float = Field(default=0, exclude_if=is_zero)
    fingerprints: RowFingerprints
    answer: Answer | None = Field(default=None, exclude_if=is_none)
    conversation: ConversationRow | None = Field(default=None, exclude_if=is_none)
    tags: dict[str, list[str]] | None = Field(default=None, exclude_if=is_none)
    content_omitted: bool = Field(default=False, exclude_if=is_zero)

    def to_line(self) -> bytes:
        """The row as a line of the file: JSON with a newline. None is written as null, unless the field omits it."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True) + b"\n"

    def without_content(self) -> Row:
        """The row without what was asked, answered and said of the answer."""
        graders = {name: grader.without_content() for name, grader in self.graders.items()}
        answer = None if self.answer is None else self.answer.without_content()
        left: dict[str, object] = {"case": None, "output": None, "graders": graders, "answer": answer}
        if self.conversation is not None:
            left["conversation"] = self.conversation.without_content()
        if self.error is not None:
            left["error"] = self.error.with_fields(steps=None, steps_cut=None)
        return self.model_copy(update={**left, "content_omitted": self.content_omitted or self.has_answer})

    def turns(self) -> list[TurnRow]:
        """The turns of its conversation with their answers; none where it has no conversation, or does not hold it."""
        turns = [] if self.conversation is None else [*self.conversation.turns]
        if turns and self.output is not None:
            turns[-1] = turns[-1].with_fields(output=self.output, answer=self.answer)
        return turns if all(turn.output is not None for turn in turns) else []

    @property
    def answers(self) -> list[Answer]:
        """The answers of its turns that it holds, or its one answer; what was done before an error is the last."""
        answers = [] if self.conversation is None else [turn.answer for turn in self.conversation.turns]
        held = answers if self.answer is None else [*answers[:-1], self.answer]
        if self.error is not None and self.error.steps:
            error = self.error
            held.append(Answer(request_id=error.request_id, steps=error.steps, steps_cut=error.steps_cut))
        return [answer for answer in held if answer is not None]

    @property
    def key(self) -> RowKey:
        """The case, target, repeat and prompt of the row."""
        return RowKey(self.case_id, self.target, self.repeat, self.prompt)

    @property
    def column(self) -> str:
        """The column of every table that it is in."""
        return column_name(self.target, self.prompt)

    @property
    def verdicts(self) -> dict[str, GraderRow | Check]:
        """The results of the graders, each before those of its rubric's criteria, by the names of their columns."""
        found: dict[str, GraderRow | Check] = {}
        for name, grader in self.graders.items():
            found[name] = grader
            found |= {criterion_name(name, criterion): check for criterion, check in grader.criteria.items()}
        return found

    @property
    def target_fingerprint(self) -> str | None:
        """The fingerprint of the target's configuration that made the row, if it is known."""
        return self.fingerprints.target

    @property
    def has_answer(self) -> bool:
        """Whether the target answered, even if the row does not hold the answer."""
        return self.output is not None or self.content_omitted

    @property
    def is_gradable(self) -> bool:
        """Whether the row holds the answer, so that it can be graded again."""
        return self.output is not None and self.answer is not None

    @property
    def result(self) -> Result | None:
        """The target's result, as graders are given it; None where there is none, or the row has no more than text."""
        if self.output is None or self.answer is None:
            return None
        result = self.answer.to_result(
            self.output, self.target, duration_ms=self.duration_ms, fingerprint=self.target_fingerprint
        )
        if self.conversation is None:
            return result
        steps, cut = steps_of_turns(self.turns())
        return result.with_fields(steps=steps, steps_cut=cut)

    @property
    def steps(self) -> list[AgentStep]:
        """What the target did; empty where the row does not say it."""
        return [] if (result := self.result) is None else steps_of(result)

    @property
    def open_status(self) -> RowStatus:
        """Its status; of a graded row whose jury lacks votes, the one that it would have without a verdict."""
        missing = [vote for grader in self.graders.values() for vote in grader.missing_votes]
        if self.status is not RowStatus.GRADED or not missing:
            return self.status
        return RowStatus.IN_DOUBT if any(vote.in_doubt for vote in missing) else RowStatus.ERROR

    @property
    def tied(self) -> bool:
        """Whether the row is graded and a jury with a weight is tied."""
        return self.status is RowStatus.GRADED and any(one.tied and one.weight for one in self.graders.values())

    @property
    def passed(self) -> bool:
        """Whether the row is graded and every grader passed it, but those of weight 0."""
        if self.status is not RowStatus.GRADED or self.score is None:
            return False
        return all(grader.passed for grader in self.graders.values() if grader.weight)
