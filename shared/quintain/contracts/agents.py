"""What an agent did in one call, and how its conversation goes on (``docs/protocol/requests.md``)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, JsonValue

from quintain.contracts.message import Message
from quintain.contracts.values import Number, RoutingKey, Whole

#: The steps of one call have at most so many bytes, as JSON: the worker cuts them before it settles.
MAX_STEPS_BYTES: Final = 256 * 1024

#: A conversation's id, which its caller chooses.
ConversationId = Annotated[str, Field(min_length=1, max_length=128)]

#: What kind of step: a model was asked, a tool ran, or another agent took over.
Operation = Literal["chat", "execute_tool", "invoke_agent"]


class AgentStep(Message):
    """One thing that an agent did within a call; on the wire each field has OpenTelemetry's name for GenAI.

    ``start_ms`` counts from the start of the call. A step of operation ``chat`` has the model's ``messages``, each with
    a ``role`` and ``parts`` (``text``, ``reasoning``, ``tool_call``, ``tool_call_response``); one of ``execute_tool``
    has the tool's name, arguments and result. ``error_type`` is the class of the error that it ended with.

    Example::

        AgentStep(operation="execute_tool", tool="search", arguments={"q": "tides"}, result="12:40", duration_ms=120)
    """

    model_config = ConfigDict(alias_generator=None)

    operation: Operation = Field(alias="gen_ai.operation.name")
    start_ms: Number = 0
    duration_ms: Number | None = None
    agent: str | None = Field(default=None, alias="gen_ai.agent.name")
    model: str | None = Field(default=None, alias="gen_ai.response.model")
    messages: list[dict[str, Any]] | None = Field(default=None, alias="gen_ai.output.messages")
    tool: str | None = Field(default=None, alias="gen_ai.tool.name")
    tool_call_id: str | None = Field(default=None, alias="gen_ai.tool.call.id")
    arguments: JsonValue = Field(default=None, alias="gen_ai.tool.call.arguments")
    result: JsonValue = Field(default=None, alias="gen_ai.tool.call.result")
    input_tokens: Whole | None = Field(default=None, alias="gen_ai.usage.input_tokens")
    output_tokens: Whole | None = Field(default=None, alias="gen_ai.usage.output_tokens")
    error_type: str | None = Field(default=None, alias="error.type")


class StepsCut(Message):
    """What was left out of a call's steps to keep within `MAX_STEPS_BYTES`.

    ``steps`` were left out whole, after the first ``kept``; ``characters`` were cut out of the texts of the others.
    """

    kept: Whole
    steps: Whole = 0
    characters: Whole = 0


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
    last of them, and finds the conversation by ``continuation``.
    """

    conversation_id: ConversationId
    number: Annotated[int, Field(ge=1)]
    continuation: Continuation | None = None
