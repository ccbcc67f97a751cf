"""The lines of a program that is an agent: what it is told of a turn, and what it prints of it (``docs/agents.md``)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import from_json, to_json

from quintain.apis.reported_steps import read_steps
from quintain.contracts.agents import AgentStep, StepsCut
from quintain.contracts.invoke import InvokeRequest, JsonObject, OutputMessage, TokenUsage, content_text
from quintain.contracts.message import describe_validation_error
from quintain.contracts.step_log import StepLog
from quintain_worker.providers.conversation import named_messages, refusal
from quintain_worker.providers.provider import OnText, ProviderAnswer

#: A line's JSON object.
Line = dict[str, Any]


class _PrintedMessage(BaseModel):
    # Other fields, such as tool calls that the program has already made, are ignored.
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[JsonObject]


class PrintedAnswer(BaseModel):
    """The answer of a program, as JSON."""

    model_config = ConfigDict(extra="ignore")

    text: str | None = None
    output: str | list[_PrintedMessage] | None = None
    token_usage: TokenUsage | None = Field(
        default=None, validation_alias=AliasChoices("token_usage", "tokenUsage", "usage")
    )
    steps: list[JsonValue] = []
    estimated_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    def to_answer(self) -> ProviderAnswer:
        """Return the answer; of several messages, the last of the assistant is the text. Raises `ValueError`."""
        try:
            steps = read_steps(self.steps)
        except ValueError as error:
            raise ValueError(f"steps: {error}") from None
        text, output = self.text, None
        if isinstance(self.output, list):
            output = [OutputMessage(content=message.content) for message in self.output if message.role == "assistant"]
            if not output:
                raise ValueError("output holds no message of the assistant")
            text = content_text(output[-1].content) if text is None else text
        elif text is None:
            text = self.output
        if text is None:
            raise ValueError("it has neither text nor output")
        return ProviderAnswer(
            text=text,
            output=output,
            token_usage=self.token_usage,
            steps=steps,
            estimated_cost_usd=self.estimated_cost_usd,
        )


def parse_output(text: str) -> ProviderAnswer:
    """Parse a program's JSON into an answer; of several messages, the last of the assistant is the text.

    Raises `ValueError` with a message that does not quote the output.
    """
    try:
        printed = PrintedAnswer.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None
    return printed.to_answer()


class TurnReading:
    """What a program has printed of one turn so far; ``answer`` or ``error`` is set at its end."""

    def __init__(self, on_text: OnText | None) -> None:
        self._on_text = on_text
        self._texts: list[str] = []
        self._steps = StepLog()
        self._started_at = time.monotonic()
        #: The message that goes on, and the tools that run, by the id of their call.
        self._message: AgentStep | None = None
        self._tools: dict[str, AgentStep] = {}
        #: The text of the last message that has any.
        self.last_text = ""
        #: The tokens of all model calls that were told of.
        self.tokens: TokenUsage | None = None
        self.answer: ProviderAnswer | None = None
        self.error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended."""
        return self.answer is not None or self.error is not None

    def add_text(self, text: str) -> None:
        """Add the next piece of the answer."""
        self._texts.append(text)
        if self._on_text is not None and text:
            self._on_text(text)

    def add_step(self, step: AgentStep) -> None:
        """Add the next step."""
        self._steps.add(step)

    def add_message(self, parts: list[Line], *, model: str | None = None, goes_on: bool = False) -> None:
        """Add a message of the agent's model; one that ``goes_on`` is a piece of a message, after the piece before."""
        text = "".join(str(part.get("content")) for part in parts if part.get("type") == "text")
        if goes_on and self._message is not None:
            text = self.last_text + text
            parts = [{"type": "text", "content": text}]
        else:
            self._end_message()
        started = self._now_ms() if self._message is None else self._message.start_ms
        message = {"role": "assistant", "parts": parts}
        self._message = AgentStep(operation="chat", start_ms=started, model=model, messages=[message])
        self.last_text = text or self.last_text

    def add_tokens(self, **counts: int) -> None:
        """Add the tokens of a model call."""
        before = TokenUsage(input=0, output=0, cached=0, cache_write=0) if self.tokens is None else self.tokens
        self.tokens = TokenUsage(**{name: getattr(before, name) + count for name, count in counts.items()})

    def add_log(self, message: str) -> None:
        """Add what the agent says beside its answer."""
        self._end_message()
        self._steps.add(AgentStep(operation="log", start_ms=self._now_ms(), result=message))

    def tool_started(self, call_id: str, name: str, arguments: object) -> None:
        """Note a tool that begins to run, unless it is known already."""
        self._end_message()
        if call_id not in self._tools:
            step = AgentStep(operation="execute_tool", tool=name, tool_call_id=call_id, arguments=arguments)
            self._tools[call_id] = step.with_fields(start_ms=self._now_ms())

    def tool_ended(
        self, call_id: str, result: object, error_type: str | None, *, duration_ms: float | None = None
    ) -> None:
        """Add the step of a tool that has run, for ``duration_ms`` or since it was said to begin."""
        step = self._tools.pop(call_id, None) or AgentStep(operation="execute_tool", tool_call_id=call_id)
        if duration_ms is not None:
            step = step.with_fields(start_ms=max(0.0, round(self._now_ms() - duration_ms, 1)))
        elif step.start_ms is not None:
            duration_ms = round(self._now_ms() - step.start_ms, 1)
        self._steps.add(step.with_fields(result=result, error_type=error_type, duration_ms=duration_ms))

    def _end_steps(self) -> None:
        self._end_message()
        for step in self._tools.values():
            self._steps.add(step)
        self._tools.clear()

    def _end_message(self) -> None:
        if self._message is not None:
            self._steps.add(self._message)
        self._message = None

    def _now_ms(self) -> float:
        return round((time.monotonic() - self._started_at) * 1000, 1)

    def finish(self, printed: PrintedAnswer) -> None:
        """End the turn with an answer, which may leave out the text that came in pieces.

        Raises `ValueError` if its text is another one than that of the pieces.
        """
        self._end_steps()
        pieces = "".join(self._texts)
        if self._texts and printed.text is None and printed.output is None:
            printed = printed.model_copy(update={"text": pieces})
        answer = printed.to_answer()
        if not answer.text.startswith(pieces):
            same = next((at for at in range(len(answer.text)) if answer.text[at] != pieces[at]), len(answer.text))
            raise ValueError(
                f"its text differs from that of the pieces before at character {same + 1} of {len(pieces)}; print an "
                "answer without text, or with the same text, and more at its end"
            )
        if self._texts and len(answer.text) > len(pieces):
            self.add_text(answer.text[len(pieces) :])
        for step in answer.steps:
            self._steps.add(step)
        self.answer = dataclasses.replace(answer, steps=self._steps.steps, steps_cut=self._steps.cut)

    def steps(self) -> tuple[tuple[AgentStep, ...], StepsCut | None]:
        """Return the steps of a turn that failed, and what was left out of them; tools that run have no result."""
        self._end_steps()
        return self._steps.steps, self._steps.cut

    def fail(self, message: object, line: Line) -> None:
        """End the turn with the message of an error, or with its line where it has none."""
        self.error = str(message or line)


#: Reads one line of a turn. Raises `ValueError` if the line cannot be used.
ReadLine = Callable[[Line, TurnReading], None]


def turn_line(request: InvokeRequest, conversation_id: str, number: int) -> bytes:
    """Return the line that tells a program of a turn. Raises `ProviderFailure` for tool calls of the caller's own."""
    messages: list[Line] = []
    for field, message in named_messages(request):
        if message.tool_calls or message.role == "tool":
            raise refusal(field, "this target runs its own tools; leave it out")
        messages.append({"role": message.role, "content": message.content})
    prompt = content_text(messages[-1]["content"])
    turn = {"type": "turn", "conversation": conversation_id, "number": number, "prompt": prompt, "messages": messages}
    return to_json(turn)


def end_line(conversation_id: str) -> bytes:
    """Return the line that tells a program that a conversation is over, and that it is kept for the next."""
    return to_json({"type": "end", "conversation": conversation_id})


def parse_line(line: bytes) -> Line:
    """Return the JSON object of a line. Raises `ValueError`."""
    try:
        parsed = from_json(line)
    except ValueError:
        raise ValueError("it is no JSON; print one object a line, and all else to stderr") from None
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object; print one object a line, and all else to stderr")  # noqa: TRY004 -- one error for all lines that cannot be used
    return parsed


def read_agent_line(line: Line, reading: TurnReading) -> None:
    """Read a line of Quintain's own protocol. Raises `ValueError`."""
    try:
        match line:
            case {"type": "text", "text": str(text)}:
                reading.add_text(text)
            case {"type": "step"}:
                reading.add_step(AgentStep.model_validate(line))
            case {"type": "answer"}:
                reading.finish(PrintedAnswer.model_validate(line))
            case {"type": "error", "message": str(message)}:
                reading.fail(message, line)
            case _:
                raise ValueError("its type is none of text, step, answer and error, or its text is missing")
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None
