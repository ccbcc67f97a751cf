"""Invoke request, result and faults, and what a caller may get before the reply (``docs/protocol/README.md``)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, FiniteFloat, JsonValue, StrictBool, StrictStr, model_validator

from quintain import errors
from quintain.contracts.agents import AgentStep, Continuation, StepsCut, Turn
from quintain.contracts.message import Message
from quintain.contracts.values import GraderId, Number, Whole, non_finite_path, shorten

#: A number between 0 and 1, such as a probability.
Fraction = Annotated[FiniteFloat, Field(ge=0, le=1)]

#: What happens to a setting that the provider cannot honour: the call is refused, or made without it.
Unsupported = Literal["refuse", "ignore"]

#: A JSON object whose keys are defined by the provider, such as a JSON schema.
JsonObject = dict[str, JsonValue]

#: The finish reasons of answers that ended at a limit of tokens, in the words of APIs, vendors and their libraries.
CUT_REASONS = frozenset(
    {"length", "max_tokens", "max_output_tokens", "max_length", "model_length", "token_limit", "incomplete"}
    | {"model_context_window_exceeded", "context_length_exceeded", "finish_reason_max_tokens"}
)


class Reasoning(Message):
    """A piece of a model's reasoning, which Anthropic calls thinking.

    ``signature`` is the provider's proof that it wrote the text; ``redacted`` is a piece that only the provider reads.
    """

    text: str = ""
    signature: str | None = None
    redacted: str | None = None


class ToolCall(Message):
    """A tool call requested by a model; ``arguments`` is the model's text, which should be JSON but may not be."""

    id: str
    name: str
    arguments: str


class ChatMessage(Message):
    """One message of a conversation; ``content`` is text, or a list of parts in OpenAI's format.

    ``tool_calls`` are the calls that an assistant message requests; ``tool_call_id`` is the call that a message of role
    ``tool`` answers. ``is_error``: that call failed; Anthropic is told so, other APIs have only the text.
    ``reasoning`` is what the assistant thought before it answered, as an earlier answer brought it.

    Example::

        ChatMessage(role="user", content="What is the capital of France?")
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[JsonObject]
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    is_error: bool | None = None
    reasoning: list[Reasoning] | None = None


class InvokeSettings(Message):
    """Sampling and tool settings of a request, in OpenAI's words; other providers get them translated.

    A setting that a provider cannot honour is refused by name (`UnsupportedParameter`), and so is one whose name is not
    among these fields, unless ``unsupported`` is ``ignore``: then the result names it in ``ignored``. ``extra_body``
    holds fields of the provider's own, which its request gets unchanged.

    Example::

        InvokeSettings(temperature=0, max_tokens=200, reasoning_effort="high")
    """

    # A setting of a later version is kept, so that a worker that does not know it can refuse it by name.
    model_config = ConfigDict(extra="allow")

    temperature: FiniteFloat | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    top_p: Fraction | None = None
    top_k: int | None = None
    min_p: Fraction | None = None
    frequency_penalty: FiniteFloat | None = None
    presence_penalty: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    logit_bias: dict[str, FiniteFloat] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    reasoning_effort: str | None = None
    thinking: JsonObject | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None
    response_format: JsonObject | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: StrictBool | None = None
    extra_body: JsonObject | None = None
    unsupported: Unsupported | None = None

    def unknown(self) -> set[str]:
        """Return the names of settings with a value that are no fields of this class."""
        return {name for name, value in (self.model_extra or {}).items() if value is not None}


class InvokeRequest(Message):
    """A request to one target; ``provider`` is an alias of ``target``.

    It has one of ``question`` and ``messages``. ``grader`` names the grader that asks, if one does: the session's usage
    is told by it. ``turn`` is its place in a conversation of several calls.

    NaN and infinite numbers are refused at any depth of ``settings`` and ``messages``: JSON has none.

    Example::

        InvokeRequest(question="Explain TCP.", target="gpt4o", settings=InvokeSettings(temperature=0))
    """

    # A number that became NaN after validation is written as such, for the receiver to refuse, and not as null.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    question: StrictStr | None = None
    system_prompt: str | None = None
    messages: list[ChatMessage] | None = None
    target: str | None = None
    provider: str | None = None
    eval_case_id: str | None = None
    attempt: Annotated[int, Field(ge=0)] | None = None
    settings: InvokeSettings | None = None
    metadata: dict[str, str] | None = None
    grader: GraderId | None = None
    turn: Turn | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.question and not self.messages:
            raise ValueError("Missing required field: question")
        if self.question and self.messages:
            raise ValueError("question and messages: give one of them")
        if self.target is not None and self.provider is not None and self.target != self.provider:
            raise ValueError("target and provider: they name different targets")
        if self.settings is not None or self.messages is not None:
            self._check_numbers()
        return self

    def _check_numbers(self) -> None:
        fields: list[tuple[str, object]] = []
        for name, value in self.settings or ():
            field = InvokeSettings.model_fields.get(name)
            fields.append((f"settings.{name if field is None else field.alias}", value))
        fields += [(f"messages.{index}.content", turn.content) for index, turn in enumerate(self.messages or [])]
        for name, value in fields:
            if (path := non_finite_path(value, name)) is not None:
                raise ValueError(f"{shorten(path)}: it must be a finite number")

    @property
    def requested_target(self) -> str | None:
        """The name of the target in the request, under either field name, or None."""
        return self.target if self.target is not None else self.provider

    def conversation(self) -> list[ChatMessage]:
        """Return the conversation as messages, starting with the system prompt."""
        turns = self.messages or [
            ChatMessage.unchecked(
                role="user",
                content=self.question or "",
                tool_calls=None,
                tool_call_id=None,
                is_error=None,
                reasoning=None,
            )
        ]
        if self.system_prompt:
            return [ChatMessage(role="system", content=self.system_prompt), *turns]
        return turns


#: More tokens of one kind than a call can have.
MAX_PLAUSIBLE_TOKENS: Final = 100_000_000


class TokenUsage(Message):
    """Token counts as the provider reported them.

    ``input`` includes ``cached``, which the provider had in its cache, and ``cache_write``, which it put there, of
    which ``cache_write_1h`` for an hour; ``output`` includes ``reasoning``.
    """

    input: int = 0
    output: int = 0
    cached: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    reasoning: int | None = None

    @property
    def is_plausible(self) -> bool:
        """Whether one call can have used this: no count is below zero or far too large, and no part above its whole."""
        parts = (self.cached or 0, self.cache_write or 0, self.cache_write_1h or 0, self.reasoning or 0)
        counts = (self.input, self.output, *parts)
        return (
            min(counts) >= 0
            and max(counts) <= MAX_PLAUSIBLE_TOKENS
            and parts[0] + parts[1] <= self.input
            and parts[2] <= parts[1]
        )

    def beyond(self, other: TokenUsage) -> TokenUsage:
        """Return what is more than the other, for each kind of tokens; added to that one, it makes the larger."""
        return TokenUsage(**{kind: max(0, n - (getattr(other, kind) or 0)) for kind, n in self if n is not None})

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
            cache_write=add_optional(self.cache_write, other.cache_write),
            cache_write_1h=add_optional(self.cache_write_1h, other.cache_write_1h),
            reasoning=add_optional(self.reasoning, other.reasoning),
        )


#: The usage of calls that reported none; adding it is free.
NO_TOKENS: Final = TokenUsage()


class OutputMessage(Message):
    """One message of an answer.

    ``refusal`` is the text with which the model refused to answer; it is the content too if there is no other.
    ``logprobs`` are the tokens of the content with their log probabilities, in OpenAI's format.
    """

    role: Literal["assistant"] = "assistant"
    content: str | list[JsonObject]
    tool_calls: list[ToolCall] | None = None
    reasoning: list[Reasoning] | None = None
    refusal: str | None = None
    logprobs: list[JsonObject] | None = None


class Result(Message):
    """The answer of a target, with its usage and durations (in milliseconds).

    ``output`` are the answer's messages; its text is that of the last one. ``call_count`` and ``max_calls`` are the
    session's budget after the call. ``replayed``: the stored reply of an earlier request with the same id.
    ``target_fingerprint`` is the fingerprint of the configuration that the worker answered with, if it has one.
    ``ignored`` names the settings that the call was made without, because ``unsupported`` was ``ignore``.
    ``body`` is the answer to an `ApiRequest`, in the words of its API; ``output`` is empty then. ``cost_usd`` is the
    cost of the tokens in ``token_usage``, in US dollars, if the worker knows it. Both are the larger of what an agent
    reports and what its own calls took; ``reported_usage`` is set where it reports fewer tokens. ``estimated_cost_usd``
    is what an agent says that it cost. ``steps`` are what it did, and ``steps_cut`` what was left out of them.
    ``continuation`` is what the next turn of the conversation has to say; None where its messages are enough.
    """

    output: list[OutputMessage]
    token_usage: TokenUsage | None = None
    cost_usd: Number | None = None
    reported_usage: TokenUsage | None = None
    estimated_cost_usd: Number | None = None
    target: str
    model: str | None = None
    finish_reason: str | None = None
    attempts: Whole = 1
    cached: bool = False
    replayed: bool = False
    duration_ms: Number = 0
    queued_ms: Number = 0
    call_count: Whole
    max_calls: Whole
    target_fingerprint: str | None = None
    ignored: list[str] | None = None
    body: dict[str, Any] | None = None
    steps: list[AgentStep] | None = None
    steps_cut: StepsCut | None = None
    continuation: Continuation | None = None

    @property
    def raw_text(self) -> str:
        """The answer's text; empty where it has no message."""
        return content_text(self.output[-1].content) if self.output else ""


#: The fields of a fault that its wire format has as they are, but for times.
_OF_FAULT: Final = ("code", "status", "retryable", "parameter", "provider_error", "steps_cut", "cost_usd")


class FaultReply(Message):
    """The wire format of a fault; `to_fault` converts it to an exception.

    ``charge_unknown``: no ledger decided whether the call is charged. ``charged`` is true then, so that a client that
    ignores it does not repeat the call under another request id. ``steps`` are what an agent did before the fault,
    ``steps_cut`` what was left out of them (a repeated call is answered without them), and ``cost_usd`` what its calls
    cost. ``duration_ms`` is how long all its tries took at the provider.
    """

    error: str
    code: str
    status: int
    retryable: bool = False
    charged: bool = False
    charge_unknown: bool | None = None
    retry_after_ms: int | None = None
    available_targets: list[str] | None = None
    parameter: str | None = None
    provider_error: errors.ProviderError | None = None
    steps: list[AgentStep] | None = None
    steps_cut: StepsCut | None = None
    duration_ms: Number | None = None
    cost_usd: Number | None = None

    @classmethod
    def from_fault(cls, fault: errors.Fault) -> Self:
        """Return the wire format of a fault."""
        return cls(
            **{name: getattr(fault, name) for name in _OF_FAULT},
            error=fault.message,
            retry_after_ms=fault.retry_after_ms,
            duration_ms=fault.duration_ms,
            charged=fault.charged is not False,
            charge_unknown=True if fault.charged is None else None,
            available_targets=None if fault.available_targets is None else list(fault.available_targets),
            steps=list(fault.steps) or None,
        )

    def to_fault(self) -> errors.Fault:
        """Return the fault as an exception; an unknown code becomes an `InternalFault` with the same message."""
        fault_type = errors.FAULTS.get(self.code, errors.InternalFault)
        fault = fault_type(self.error, retry_after_ms=self.retry_after_ms, available_targets=self.available_targets)
        fault.parameter, fault.provider_error = self.parameter, self.provider_error
        fault.steps, fault.steps_cut, fault.duration_ms = self.steps or (), self.steps_cut, self.duration_ms
        fault.cost_usd = self.cost_usd
        fault.charged, fault.retryable = None if self.charge_unknown else self.charged, self.retryable
        return fault


def content_text(content: str | list[dict[str, Any]]) -> str:
    """Return the text of a message's content; parts without text are skipped."""
    if isinstance(content, str):
        return content
    return "".join(str(part["text"]) for part in content if isinstance(part.get("text"), str))


class ToolCallChunk(Message):
    """A piece of a tool call on its way; ``index`` counts the calls of an answer, and ``arguments`` is the next text.

    The first piece of a call has its ``id`` and ``name``.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ReasoningChunk(Reasoning):
    """A piece of the model's reasoning on its way; ``index`` counts the pieces of the result's reasoning.

    ``text`` is the next text of that piece. Its ``signature``, or ``redacted``, comes once and is whole.
    """

    index: int


class Chunk(Message):
    """A piece of an answer, sent to callers that accept chunks: of its text, its reasoning or a tool call.

    ``seq`` counts from 0 within an ``attempt``; a higher attempt voids all chunks before it. ``events`` are those of
    the stream that answers an `ApiRequest`, in the words of its API.
    """

    attempt: Whole
    seq: Whole
    delta: str
    tool_call: ToolCallChunk | None = None
    reasoning: ReasoningChunk | None = None
    events: list[dict[str, Any]] | None = None


class Progress(Message):
    """A notification that a call is running, sent to callers that accept progress; ``attempt`` counts from 1."""

    state: Literal["running"] = "running"
    attempt: Whole
    elapsed_ms: Whole
