"""Invoke request and result, streamed chunks, progress and faults (``protocol.md`` §2 and §3)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, JsonValue, StrictStr, model_validator

from quintain import errors
from quintain.contracts.message import Message

#: An object of the wire whose keys are the provider's own, such as a JSON schema.
JsonObject = dict[str, JsonValue]


class ToolCall(Message):
    """A tool that a model wants called. ``arguments`` is the model's own text: JSON, if it kept to the schema."""

    id: str
    name: str
    arguments: str


class ChatMessage(Message):
    """One turn of a conversation. ``content`` is text, or parts as OpenAI writes them.

    ``tool_calls`` is what the assistant asked for in this turn; ``tool_call_id`` is which of them a turn of role
    ``tool`` answers.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[JsonObject]
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class InvokeSettings(Message):
    """What the model is told beside the words. A provider that cannot honour one refuses it by name."""

    temperature: float | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    response_format: JsonObject | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None


class InvokeRequest(Message):
    """One question to one target; ``provider`` is another spelling of ``target``."""

    question: StrictStr | None = None
    system_prompt: str | None = None
    messages: list[ChatMessage] | None = None
    target: str | None = None
    provider: str | None = None
    eval_case_id: str | None = None
    attempt: Annotated[int, Field(ge=0)] | None = None
    settings: InvokeSettings | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _check_question_and_target(self) -> Self:
        if not self.question and not self.messages:
            raise ValueError("Missing required field: question")
        if self.question and self.messages:
            raise ValueError("question and messages: give one of them")
        if self.target is not None and self.provider is not None and self.target != self.provider:
            raise ValueError("target and provider: they name different targets")
        return self

    @property
    def requested_target(self) -> str | None:
        """The target this body names, in whichever spelling, or None."""
        return self.target if self.target is not None else self.provider

    def conversation(self) -> list[ChatMessage]:
        """The whole conversation as messages, the system prompt first."""
        turns = self.messages or [ChatMessage(role="user", content=self.question or "")]
        if self.system_prompt:
            return [ChatMessage(role="system", content=self.system_prompt), *turns]
        return turns


class TokenUsage(Message):
    """Tokens as the provider counted them; ``cached`` and ``reasoning`` are shares of input and output."""

    input: int = 0
    output: int = 0
    cached: int | None = None
    reasoning: int | None = None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        if other is NO_TOKENS:
            return self
        if self is NO_TOKENS:
            return other

        def add_optional(a: int | None, b: int | None) -> int | None:
            return None if a is None and b is None else (a or 0) + (b or 0)

        return TokenUsage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=add_optional(self.cached, other.cached),
            reasoning=add_optional(self.reasoning, other.reasoning),
        )


#: What was spent where nothing was: adding it takes no time.
NO_TOKENS: Final = TokenUsage()


class OutputMessage(Message):
    """One message of an answer."""

    role: Literal["assistant"] = "assistant"
    content: str | list[JsonObject]
    tool_calls: list[ToolCall] | None = None


class Chunk(Message):
    """A piece of an answer on its way, for callers that asked for it. ``seq`` counts from 0 within an ``attempt``;
    a higher attempt voids the chunks before it."""

    attempt: int
    seq: int
    delta: str


class Progress(Message):
    """A word that a call still runs, for callers that asked for it: which attempt it is, from 1, and for how long it
    has run."""

    state: Literal["running"] = "running"
    attempt: int
    elapsed_ms: int


class Result(Message):
    """What a target answered, who served it, and what it took. Durations are in milliseconds."""

    output: list[OutputMessage]
    raw_text: str
    token_usage: TokenUsage | None = None
    target: str
    model: str | None = None
    finish_reason: str | None = None
    attempts: int = 1
    cached: bool = False
    replayed: bool = False
    duration_ms: float = 0
    queued_ms: float = 0
    call_count: int
    max_calls: int


class FaultReply(Message):
    """Why there is no result, as it travels; `to_fault` is the same as an exception."""

    error: str
    code: str
    status: int
    retryable: bool = False
    charged: bool = False
    retry_after_ms: int | None = None
    available_targets: list[str] | None = None

    @classmethod
    def from_fault(cls, fault: errors.Fault) -> Self:
        """The fault as it travels."""
        return cls(
            error=fault.message,
            code=fault.code,
            status=fault.status,
            retryable=fault.retryable,
            charged=fault.charged,
            retry_after_ms=fault.retry_after_ms,
            available_targets=None if fault.available_targets is None else list(fault.available_targets),
        )

    def to_fault(self) -> errors.Fault:
        """The typed exception; a code this version does not know is an `InternalFault` with its sentence."""
        fault_type = errors.FAULTS.get(self.code, errors.InternalFault)
        fault = fault_type(
            self.error,
            charged=self.charged,
            retry_after_ms=self.retry_after_ms,
            available_targets=self.available_targets,
        )
        fault.charged, fault.retryable = self.charged, self.retryable
        return fault


def content_text(content: str | list[dict[str, Any]]) -> str:
    """The text of a message's content; parts without text add nothing."""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content if isinstance(part.get("text"), str))
