"""What an agent did in one call, and how its conversation goes on (``docs/protocol/requests.md``)."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Final

from pydantic import Field, FiniteFloat, Strict

from quintain.contracts.message import Message
from quintain.contracts.values import Count, RoutingKey, Whole

#: The steps of one call have at most so many bytes, as JSON: the worker cuts them before it settles.
MAX_STEPS_BYTES: Final = 256 * 1024

#: A conversation's id, which its caller chooses.
ConversationId = Annotated[str, Field(min_length=1, max_length=128)]

#: What kind of step: OpenTelemetry's ``chat`` (a model answered), ``execute_tool`` (a tool ran), ``invoke_agent``
#: (another agent ran) and so on; ``emit`` and ``log`` are a hosted target's own.
Operation = Annotated[str, Field(min_length=1, max_length=64)]

#: A time in milliseconds; JSON has no NaN.
Milliseconds = Annotated[FiniteFloat, Strict()]


def _named(name: str, default: Any = None) -> Any:
    """A field that has this name on the wire, and in Python its own."""
    return Field(default=default, validation_alias=name, serialization_alias=name)


class AgentStep(Message):
    """One thing that an agent did within a call; on the wire its fields have OpenTelemetry's names for GenAI.

    ``start_ms`` counts from the start of the call. A step of operation ``chat`` has the model's ``messages``, each with
    a ``role`` and ``parts`` (``text``, ``reasoning``, ``tool_call``, ``tool_call_response``); one of ``execute_tool``
    has the tool's name, arguments and result, which are any JSON. ``error_type`` is the class of the error that it
    ended with. Attributes that are not among these are left out.

    Example::

        AgentStep(operation="execute_tool", tool="search", arguments={"q": "tides"}, result="12:40", duration_ms=120)
    """

    operation: Operation = _named("gen_ai.operation.name", ...)
    start_ms: Milliseconds | None = None
    duration_ms: Milliseconds | None = None
    agent: str | None = _named("gen_ai.agent.name")
    model: str | None = _named("gen_ai.response.model")
    messages: list[dict[str, Any]] | None = _named("gen_ai.output.messages")
    tool: str | None = _named("gen_ai.tool.name")
    tool_call_id: str | None = _named("gen_ai.tool.call.id")
    arguments: Any = _named("gen_ai.tool.call.arguments")
    result: Any = _named("gen_ai.tool.call.result")
    input_tokens: Count | None = _named("gen_ai.usage.input_tokens")
    output_tokens: Count | None = _named("gen_ai.usage.output_tokens")
    error_type: str | None = _named("error.type")


class StepsCut(Message):
    """What was left out of a call's steps to keep within `MAX_STEPS_BYTES`; each place says so itself.

    ``steps`` were left out whole, after the first ``kept``. Of the others ``characters`` were cut out of the middle of
    texts, and ``values`` are lists, objects and items that were too many, or nested too deeply.
    """

    kept: Whole = 0
    steps: Whole = 0
    characters: Whole = 0
    values: Whole = 0


class Continuation(Message):
    """What the next turn of a conversation has to say, as the answer to the turn before gave it.

    ``state`` is the target's own word for the conversation, such as the session of an HTTP endpoint: any worker can go
    on with it. ``route`` is the routing key of the one worker that holds the conversation; once that worker has ended,
    the conversation is lost.
    """

    state: str | None = None
    route: RoutingKey | None = None


class Turn(Message):
    """The place of a request in a conversation: its ``number`` counts from 1.

    ``messages`` of the request are the whole conversation so far. A target that keeps the conversation itself reads the
    last of them, and finds the conversation by ``continuation``. After the ``last`` turn it is over; until its caller
    says so, its holder waits for another turn.
    """

    conversation_id: ConversationId
    number: Annotated[int, Field(ge=1)]
    continuation: Continuation | None = None
    last: bool = Field(default=False, exclude_if=operator.not_)
