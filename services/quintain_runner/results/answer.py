"""What a target answered, in one call or in the turns of a conversation, as a row holds it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from quintain.contracts.agents import MAX_STEPS_BYTES, AgentStep, Continuation, StepsCut
from quintain.contracts.invoke import CUT_REASONS, NO_TOKENS, OutputMessage, Result, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.step_log import cut_steps
from quintain_runner.results.agent_steps import steps_of


def is_none(value: object) -> bool:
    """Whether a value is None: such fields are omitted from the JSON."""
    return value is None


def is_zero(value: object) -> bool:
    """Whether a value is 0 or False: such fields are omitted from the JSON."""
    return value == 0


def is_one(value: object) -> bool:
    """Whether a value is 1: such fields are omitted from the JSON."""
    return value == 1


def _known_counts(usage: TokenUsage) -> dict[str, int]:
    """Token usage as JSON, without counts that are unknown."""
    return {kind: count for kind, count in usage if count is not None}


def is_cut(result: Result) -> bool:
    """Whether an answer ended at a limit of tokens, by its finish reason, or that of its agent's last message."""
    last = (result.steps or ())[-1:]
    told = [message.get("finish_reason") for step in last for message in step.messages or ()]
    return str(result.finish_reason or [None, *told][-1]).lower() in CUT_REASONS


#: Token usage as a row holds it.
StoredUsage = Annotated[TokenUsage, PlainSerializer(_known_counts)]


def _known_fields(step: AgentStep) -> dict[str, Any]:
    """A step as JSON, without fields that are unknown."""
    return step.model_dump(by_alias=True, exclude_none=True)


#: A step as a row holds it.
StoredStep = Annotated[AgentStep, PlainSerializer(_known_fields)]


_TEXT_MESSAGE = OutputMessage(content="")

#: What an `Answer` has of the target's words.
_NO_CONTENT = {"messages": None, "steps": None, "steps_cut": None}


class Answer(Message):
    """What a target answered, beside its text and its duration: with them the answer can be graded again.

    ``messages`` is absent where the answer is one message, and the text is all of it. ``attempts`` is absent where it
    is 1. ``cut``: it ended at a limit of tokens. ``steps`` are what an agent did, and ``steps_cut`` what its worker
    left out of them; a model's are made of its messages where they are shown (`Row.steps`). The costs and what an agent
    reported are those of `Result`.
    """

    request_id: str | None = Field(default=None, exclude_if=is_none)
    messages: list[OutputMessage] | None = Field(default=None, exclude_if=is_none)
    model: str | None = Field(default=None, exclude_if=is_none)
    finish_reason: str | None = Field(default=None, exclude_if=is_none)
    cut: bool = Field(default=False, exclude_if=is_zero)
    token_usage: StoredUsage | None = Field(default=None, exclude_if=is_none)
    reported_usage: StoredUsage | None = Field(default=None, exclude_if=is_none)
    cost_usd: float | None = Field(default=None, exclude_if=is_none)
    estimated_cost_usd: float | None = Field(default=None, exclude_if=is_none)
    attempts: int = Field(default=1, exclude_if=is_one)
    steps: list[StoredStep] | None = Field(default=None, exclude_if=is_none)
    steps_cut: StepsCut | None = Field(default=None, exclude_if=is_none)

    @classmethod
    def of(cls, result: Result, request_id: str) -> Answer:
        """The answer of this result."""
        is_text = result.output == [_TEXT_MESSAGE.with_fields(content=result.raw_text)]
        return cls.unchecked(
            request_id=request_id,
            messages=None if is_text else result.output,
            model=result.model,
            finish_reason=result.finish_reason,
            cut=is_cut(result),
            token_usage=result.token_usage,
            reported_usage=result.reported_usage,
            cost_usd=result.cost_usd,
            estimated_cost_usd=result.estimated_cost_usd,
            attempts=result.attempts,
            steps=result.steps,
            steps_cut=result.steps_cut,
        )

    def without_content(self) -> Answer:
        """The answer without the target's words."""
        return self.model_copy(update=_NO_CONTENT)

    def to_result(self, text: str, target: str, *, duration_ms: float = 0, fingerprint: str | None = None) -> Result:
        """The result that this is the answer of, as graders are given it."""
        return Result(
            output=self.messages or [OutputMessage(content=text)],
            token_usage=self.token_usage,
            reported_usage=self.reported_usage,
            cost_usd=self.cost_usd,
            estimated_cost_usd=self.estimated_cost_usd,
            target=target,
            model=self.model,
            finish_reason=self.finish_reason,
            attempts=self.attempts,
            steps=self.steps,
            steps_cut=self.steps_cut,
            replayed=True,
            duration_ms=duration_ms,
            call_count=0,
            max_calls=0,
            target_fingerprint=fingerprint,
        )


class TurnRow(Message):
    """One turn of a conversation: what the user said, and the answer.

    ``question`` is absent where the case's own question or messages were asked. ``output`` and ``answer`` of the last
    turn are those of the row, where it has an answer. ``continuation`` is what the next turn would have said, of a
    conversation that ended before its time.
    """

    question: str | None = Field(default=None, exclude_if=is_none)
    output: str | None = Field(default=None, exclude_if=is_none)
    duration_ms: float = 0
    answer: Answer | None = Field(default=None, exclude_if=is_none)
    continuation: Continuation | None = Field(default=None, exclude_if=is_none)


class ConversationRow(Message):
    """The conversation that a row was made of: its turns, those that failed apart.

    ``attempts`` is how often it was begun, where that was more than once, because ``lost_turns`` were lost with the
    workers that held them. ``user_calls`` of the row's calls asked the simulated user, which took ``user_usage``;
    ``stopped`` says that it ended the conversation, and not its ``max_turns``.
    """

    turns: list[TurnRow] = Field(default_factory=list)
    attempts: int = Field(default=1, exclude_if=is_one)
    lost_turns: int = Field(default=0, exclude_if=is_zero)
    user_calls: int = Field(default=0, exclude_if=is_zero)
    user_usage: StoredUsage = Field(default=NO_TOKENS, exclude_if=lambda usage: usage == NO_TOKENS)
    stopped: bool = Field(default=False, exclude_if=is_zero)

    def without_content(self) -> ConversationRow:
        """The conversation without what was said in it."""
        turns = [
            TurnRow(
                duration_ms=turn.duration_ms,
                answer=None if turn.answer is None else turn.answer.without_content(),
            )
            for turn in self.turns
        ]
        return self.model_copy(update={"turns": turns})


def steps_of_turns(turns: Iterable[TurnRow]) -> tuple[list[AgentStep] | None, StepsCut | None]:
    """What the target did in all these turns, and what was left out of that; None where no answer says it."""
    steps: list[AgentStep] = []
    cut = StepsCut()
    for turn in turns:
        if (answer := turn.answer) is None:
            continue
        if (more := answer.steps_cut) is not None:
            cut = StepsCut(
                kept=cut.kept if cut.steps or not more.steps else len(steps) + more.kept,
                steps=cut.steps + more.steps,
                characters=cut.characters + more.characters,
                values=cut.values + more.values,
            )
        steps += steps_of(answer.to_result(turn.output or "", "", duration_ms=turn.duration_ms))
    return steps or None, None if cut == StepsCut() else cut


def turns_of_row(turns: Sequence[TurnRow], max_bytes: int = MAX_STEPS_BYTES) -> tuple[TurnRow, ...]:
    """The turns as a row holds them: their steps have ``max_bytes`` in all, each turn's an equal share of it."""
    told = [turn.answer for turn in turns if turn.answer is not None and turn.answer.steps]
    if sum(len(step.to_wire()) + 1 for answer in told for step in answer.steps or ()) <= max_bytes:
        return tuple(turns)
    return tuple(turn.with_fields(answer=_within(turn.answer, max_bytes // len(told))) for turn in turns)


def _within(answer: Answer | None, max_bytes: int) -> Answer | None:
    if answer is None or not answer.steps:
        return answer
    steps, cut = cut_steps(answer.steps, answer.steps_cut, max_bytes=max_bytes)
    return answer.with_fields(steps=steps, steps_cut=cut)
