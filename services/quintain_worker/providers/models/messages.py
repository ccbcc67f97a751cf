"""Converts a request's conversation into the model library's messages.

Content is passed on unchanged; content that the provider does not support raises `ProviderFailure` that names the
field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from quintain.contracts.invoke import ChatMessage, InvokeRequest, JsonObject, Reasoning, ToolCall
from quintain_worker.providers.conversation import messages_with_fields, refusal
from quintain_worker.providers.models.capabilities import ApiCapabilities
from quintain_worker.providers.models.images import file_of, image_of

_Content = str | ImageUrl | BinaryContent


@dataclass(frozen=True, slots=True)
class _ModelMessage:
    """One message with the name of its request field and its converted content."""

    field: str
    message: ChatMessage
    content: tuple[_Content, ...]

    @property
    def role(self) -> str:
        return self.message.role

    @property
    def text(self) -> str:
        return "".join(part for part in self.content if isinstance(part, str))

    @property
    def is_empty(self) -> bool:
        return not any(self.content) and not self.message.tool_calls and self.role != "tool"


@dataclass(repr=False)
class _VerbatimToolCallPart(ToolCallPart):
    """A tool call whose arguments are sent unchanged; the library would reformat them."""

    def args_as_json_str(self) -> str:
        """Return the arguments' original text."""
        return self.args if isinstance(self.args, str) else super().args_as_json_str()


def messages_of(request: InvokeRequest, capabilities: ApiCapabilities) -> list[ModelMessage]:
    """Convert the conversation. Raises `ProviderFailure`, naming the field, for what the provider does not support."""
    turns = [_read_message(field, message, capabilities) for field, message in messages_with_fields(request)]
    first = next((index for index, turn in enumerate(turns) if turn.role != "system"), len(turns))
    late_system = next((turn for turn in turns[first:] if turn.role == "system"), None)
    if late_system is not None and not capabilities.allows_late_system:
        raise refusal(f"{late_system.field}.role", f"{capabilities.provider} takes a system message only at the start")
    # The leading system messages go into one request: in separate ones, the library would treat the later ones as late.
    leading = [SystemPromptPart(turn.text) for turn in turns[:first]]
    opening: list[ModelMessage] = [ModelRequest(leading)] if leading else []
    return [*opening, *_messages(turns[first:], capabilities)]


def ignored_reasoning(request: InvokeRequest, capabilities: ApiCapabilities) -> tuple[str, ...]:
    """Return the name of the messages' reasoning if the provider is asked without a piece of it.

    No API takes back reasoning that it has not signed itself, and the model is not to be told it as if it were text.
    """
    pieces = [piece for message in request.messages or [] for piece in message.reasoning or []]
    return () if all(_is_taken(piece, capabilities) for piece in pieces) else ("messages.reasoning",)


def _is_taken(piece: Reasoning, capabilities: ApiCapabilities) -> bool:
    return capabilities.takes_signed_reasoning and bool(piece.signature or piece.redacted)


def _thinking(piece: Reasoning, provider: str) -> ThinkingPart:
    if piece.redacted is not None:
        return ThinkingPart(id="redacted_thinking", content="", signature=piece.redacted, provider_name=provider)
    return ThinkingPart(content=piece.text, signature=piece.signature, provider_name=provider)


def _messages(turns: Sequence[_ModelMessage], capabilities: ApiCapabilities) -> Iterator[ModelMessage]:
    tool_names = {call.id: call.name for turn in turns for call in turn.message.tool_calls or []}
    for is_tool, group in groupby(turns, lambda turn: turn.role == "tool"):
        if is_tool:
            # All results of one message's tool calls go into one request, because Anthropic requires them in one
            # message.
            yield ModelRequest([_tool_return(turn, tool_names, capabilities) for turn in group])
        else:
            yield from (_message(turn, capabilities) for turn in group)


def _message(turn: _ModelMessage, capabilities: ApiCapabilities) -> ModelMessage:
    if turn.role == "assistant":
        pieces = [piece for piece in turn.message.reasoning or [] if _is_taken(piece, capabilities)]
        thoughts = [_thinking(piece, capabilities.provider) for piece in pieces]
        calls = [_VerbatimToolCallPart(call.name, call.arguments, call.id) for call in turn.message.tool_calls or []]
        # Empty text beside tool calls is left out, because Anthropic refuses empty text.
        texts = [TextPart(turn.text)] if turn.text or not calls else []
        return ModelResponse([*thoughts, *texts, *calls])
    if turn.role == "system":
        return ModelRequest([SystemPromptPart(turn.text)])
    single_part = turn.content[0] if len(turn.content) == 1 else None
    return ModelRequest([UserPromptPart(single_part if isinstance(single_part, str) else list(turn.content))])


def _tool_return(turn: _ModelMessage, tool_names: dict[str, str], capabilities: ApiCapabilities) -> ToolReturnPart:
    call_id = turn.message.tool_call_id or ""
    # Where an API has no mark for it, the library would put words of its own around the text.
    is_marked = turn.message.is_error is True and capabilities.marks_failed_calls
    return ToolReturnPart(tool_names.get(call_id, ""), turn.text, call_id, outcome="failed" if is_marked else "success")


def _read_message(field: str, message: ChatMessage, capabilities: ApiCapabilities) -> _ModelMessage:
    content = message.content
    if isinstance(content, str):
        turn = _ModelMessage(field, message, (content,))
    else:
        parts = (
            _read_part(f"{field}.content[{index}]", message, part, capabilities) for index, part in enumerate(content)
        )
        turn = _ModelMessage(field, message, tuple(parts))
    if turn.is_empty and not capabilities.allows_empty_text:
        raise refusal(f"{field}.content", f"{capabilities.provider} takes no empty message")
    _check_tool_calls(turn, capabilities)
    return turn


def _read_part(field: str, message: ChatMessage, part: JsonObject, capabilities: ApiCapabilities) -> _Content:
    kind = part.get("type", "text")
    if kind == "image_url" and message.role == "user":
        return image_of(field, part, capabilities)
    if kind == "file" and message.role == "user":
        return file_of(field, part)
    text = part.get("text")
    if kind != "text" or not isinstance(text, str):
        supported = "text, image_url and file parts only" if message.role == "user" else "text parts only here"
        raise refusal(field, f"this target takes {supported}")
    return text


def _check_tool_calls(turn: _ModelMessage, capabilities: ApiCapabilities) -> None:
    calls, call_id = turn.message.tool_calls, turn.message.tool_call_id
    if calls and turn.role != "assistant":
        raise refusal(f"{turn.field}.toolCalls", "only a message of the assistant holds calls")
    if turn.role == "tool" and not call_id:
        raise refusal(f"{turn.field}.toolCallId", "a message of role tool names the call that it answers")
    if turn.role != "tool" and call_id is not None:
        raise refusal(f"{turn.field}.toolCallId", "only a message of role tool answers a call")
    for index, call in enumerate(calls or []):
        if not capabilities.allows_text_arguments and not _is_object(call):
            reason = f"{capabilities.provider} takes a JSON object only"
            raise refusal(f"{turn.field}.toolCalls[{index}].arguments", reason)


def _is_object(call: ToolCall) -> bool:
    # Parse the arguments exactly as the library will.
    try:
        ToolCallPart(call.name, call.arguments).args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return False
    return True
