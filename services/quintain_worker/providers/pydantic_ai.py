"""Models of other vendors, over pydantic-ai's public interface. Needs ``quintain[pydantic-ai]``.

What pydantic-ai would drop, fetch or move is refused by name; ``docs/configuration.md`` has the table. A response is
read as the chat completion that says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from pydantic_ai import direct, exceptions, messages, models, output, providers, tools

from quintain.apis.answer_json import CharacterJoiner, mended, parse_object
from quintain.apis.media import FILE_TYPES, IMAGE_TYPES, check_data_url
from quintain.apis.translation import (
    Json,
    Translation,
    chosen_function,
    function_of,
    invalid,
    read_usage,
    tool_call,
)
from quintain.config.targets import PydanticAITarget
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings
from quintain.contracts.quota import TryOutcome
from quintain.errors import BadRequest, ConfigError, Rejected
from quintain.runtime.http_client import is_address_wrong, system_words
from quintain_worker.providers import model_failures as failures
from quintain_worker.providers.conversation import camel, named_as_sent, named_messages, settings_of, with_defaults
from quintain_worker.providers.model_answers import StreamedPieces, read_answer
from quintain_worker.providers.provider import Billing, OnText, ProviderAnswer, ProviderContext, ProviderFailure

#: Settings → their names in pydantic-ai.
_SETTINGS = {name: name for name in (
    "temperature", "max_tokens", "top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias", "seed",
    "parallel_tool_calls",
)} | {"stop": "stop_sequences"}  # fmt: skip

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

#: The parts that hold data, besides text: where, and of which media types.
_PARTS = {"image_url": ("url", IMAGE_TYPES), "file": ("file_data", FILE_TYPES)}

_CANNOT_ASK = failures.FailureKind(Rejected, "cannot ask the model this", Billing.UNKNOWN, outcome=TryOutcome.ANSWERED)


def pydantic_ai_provider(name: str, target: PydanticAITarget, _context: ProviderContext) -> PydanticAIProvider:
    """Create the provider of a model. Raises `ConfigError` where pydantic-ai lacks it, or the target's settings."""

    def vendor_of(vendor: str) -> Any:
        kind: Any = providers.infer_provider_class(vendor)
        given = {name: value for name, value in (("api_key", target.key), ("base_url", target.base_url)) if value}
        return kind(**given) if given else providers.infer_provider(vendor)

    try:
        provider = PydanticAIProvider(target, models.infer_model(target.model, vendor_of))
        provider.build(InvokeRequest(question="-"))
    except ProviderFailure as failure:
        raise ConfigError(f"targets.{name}.{failure.fault.message}") from None
    except (ImportError, exceptions.UserError, ValueError, TypeError) as error:
        raise ConfigError(f"targets.{name}: {target.model}: {error}") from None
    return provider


class PydanticAIProvider:
    """Asks a model by pydantic-ai: once per try, where the vendor's client can be told so."""

    def __init__(self, target: PydanticAITarget, model: models.Model) -> None:
        self._model, self._defaults, self._lacks = model, target.default_settings, model.unsupported_settings
        self._failures = failures.FailureReader(target)
        #: A client that repeats requests by itself may have been billed for an earlier one, whatever the last one says.
        self._is_one_request = "max_retries" not in self._lacks

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Request the model's answer within ``timeout_seconds``, streamed if ``on_text`` is given.

        Raises `ProviderFailure`.
        """
        turns, options, ignored = self.build(request)
        options["model_settings"]["request_timeout"] = timeout_seconds
        try:
            response = await self._respond(turns, options, on_text)
            answer = _answer_of(response, ignored)
        except Exception as error:
            # Not chained: what the library raises quotes the answer.
            raise self._failure_of(error) from None
        if response.finish_reason == "error":
            raise self._failures.of_error(failures.FAILED)
        # xAI's streams break off with an error. Others may just end: only the vendor's own reason shows that they are
        # whole.
        has_reason = "finish_reason" in (response.provider_details or {}) or response.provider_name == "xai"
        if on_text is not None and not has_reason:
            raise self._failures.of_error(failures.STREAM_INTERRUPTED)
        return answer

    async def close(self) -> None:
        """Close the HTTP connections."""
        async with self._model:
            pass

    def build(self, request: InvokeRequest) -> tuple[list[messages.ModelMessage], dict[str, Any], tuple[str, ...]]:
        """Return the messages and options for pydantic-ai, and the names of what is left out.

        Raises `ProviderFailure`, which names the field.
        """
        settings = with_defaults(request.settings, self._defaults)
        translation = Translation("pydantic-ai", ignore_unsupported=settings.unsupported == "ignore")
        try:
            with named_as_sent():
                options = self._options(settings, translation)
            turns = list(_turns(request))
        except BadRequest as fault:
            raise ProviderFailure(fault, Billing.UNBILLED, outcome=TryOutcome.NOT_SENT) from None
        for turn in request.messages or []:
            # What pydantic-ai has no place for.
            for name, lost in (("reasoning", turn.reasoning), ("isError", turn.is_error)):
                if lost:
                    translation.note(f"messages.{name}")
        return turns, options, tuple(camel(name) for name in translation.ignored)

    def _options(self, settings: InvokeSettings, translation: Translation) -> dict[str, Any]:
        """Return the options for pydantic-ai: it drops what a model does not take without a word."""
        given, profile, lacks = settings_of(settings, translation), self._model.profile, self._lacks
        written: Json = {"max_retries": 0} if self._is_one_request else {}
        written |= {own: given.pop(name) for name, own in _SETTINGS.items() if name in given and own not in lacks}
        parameters = models.ModelRequestParameters()
        effort, schema = given.get("reasoning_effort"), (given.get("response_format") or {}).get("json_schema")
        if effort in _EFFORTS and profile.get("supports_thinking"):
            written["thinking"] = False if given.pop("reasoning_effort") == "none" else effort
        if isinstance(schema, dict) and schema.get("schema") and profile.get("supports_json_schema_output"):
            del given["response_format"]
            shown = {"name": schema.get("name"), "strict": schema.get("strict")}
            parameters.output_mode = "native"
            parameters.output_object = output.OutputObjectDefinition(json_schema=schema["schema"], **shown)
        if profile.get("supports_tools", True) and "tools" not in lacks:
            offered, choice = enumerate(given.pop("tools", [])), given.pop("tool_choice", None)
            functions = [function_of(f"tools[{at}]", tool, translation) for at, tool in offered]
            parameters.function_tools = [_tool(function) for function in functions]
            if choice == "none" or (functions and choice in ("auto", "required")):
                written["tool_choice"] = choice
            elif choice is not None and (name := chosen_function(choice, functions, translation)) is not None:
                written["tool_choice"] = [name]
        for name, value in {**given, "extra_body": settings.extra_body or {}}.items():
            translation.leave_out(name, f"{translation.to} or this model does not take it, or this value of it", value)
        return {"model_settings": written, "model_request_parameters": parameters}

    async def _respond(
        self, turns: list[messages.ModelMessage], options: dict[str, Any], on_text: OnText | None
    ) -> messages.ModelResponse:
        if on_text is None:
            return await direct.model_request(self._model, turns, **options)
        pieces, joiner, thoughts = StreamedPieces(), CharacterJoiner(), dict[int, int]()
        async with direct.model_request_stream(self._model, turns, **options) as stream:
            async for event in stream:
                if isinstance(event, messages.PartStartEvent | messages.PartDeltaEvent):
                    _pass_on(pieces, joiner.feed(_chunk_of(event, thoughts)), on_text)
        _pass_on(pieces, joiner.end(), on_text)
        return stream.get()

    def _failure_of(self, error: Exception) -> ProviderFailure:
        if isinstance(error, exceptions.ModelHTTPError) and not error.in_stream:
            asked = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
            failure = self._failures.of_status(error.status_code, {**(error.headers or {}), **asked}, error.body)
        elif isinstance(error, exceptions.UserError | exceptions.ModelRequestRejectedError):
            failure = self._failures.of_error(_CANNOT_ASK, body={"message": error.message})
        else:
            body = error.body if isinstance(error, exceptions.ModelAPIError) else None
            detail = ": ".join(filter(None, (type(error).__name__, system_words(error))))
            failure = self._failures.of_error(_kind_of(error), detail, body)
        if failure.billing is Billing.UNBILLED and not self._is_one_request:
            failure.billing = Billing.UNKNOWN
        return failure


def _kind_of(error: Exception) -> failures.FailureKind:
    if isinstance(error, exceptions.ModelConnectionError) and error.phase in {"pool", "connect"}:
        return failures.WRONG_ADDRESS if is_address_wrong(error) else failures.NOT_SENT
    if isinstance(error, exceptions.ModelRequestTimeout | exceptions.ModelTimeoutError | TimeoutError):
        return failures.TIMED_OUT
    if isinstance(error, exceptions.ModelAPIError) and error.in_stream:
        return failures.STREAM_INTERRUPTED
    if isinstance(error, exceptions.ModelConnectionError):
        return failures.CONNECTION_LOST
    is_told = isinstance(error, exceptions.ModelAPIError) and type(error) is not exceptions.ModelAPIError
    return failures.SERVER_ERROR if is_told else failures.UNREADABLE


def _chunk_of(event: messages.PartStartEvent | messages.PartDeltaEvent, thoughts: dict[int, int]) -> Json:
    """Return the chunk of a chat completion that says the same; ``thoughts`` number its parts that are thinking."""
    part = event.part if isinstance(event, messages.PartStartEvent) else event.delta
    text, delta = getattr(part, "content", None) or getattr(part, "content_delta", None), Json()
    if isinstance(part, messages.ThinkingPart | messages.ThinkingPartDelta) and text:
        index = thoughts.setdefault(event.index, len(thoughts))
        delta = {"thinking_blocks": [{"index": index, "thinking": text}]}
    elif isinstance(part, messages.TextPart | messages.TextPartDelta):
        delta = {"content": text}
    return {"choices": [{"delta": delta}]}


def _pass_on(pieces: StreamedPieces, chunks: Iterator[Json], on_text: OnText) -> None:
    for chunk in chunks:
        for piece in pieces.feed(chunk):
            on_text(piece)


def _tool(function: Json) -> tools.ToolDefinition:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    fields: Json = {"description": function.get("description"), "strict": bool(function.get("strict"))}
    return tools.ToolDefinition(name=function["name"], parameters_json_schema=schema, **fields)


def _turns(request: InvokeRequest) -> Iterator[messages.ModelMessage]:
    names = {call.id: call.name for message in request.messages or [] for call in message.tool_calls or []}
    for at, (role, turns) in enumerate(groupby(named_messages(request), lambda turn: turn[1].role)):
        if role == "system" and at:
            raise invalid(f"{next(turns)[0]}.role", "pydantic-ai takes a system message only at the start")
        if role == "assistant":
            yield from (_assistant(field, message) for field, message in turns)
        else:
            yield messages.ModelRequest([_part(field, message, names) for field, message in turns])


def _part(field: str, message: ChatMessage, names: Mapping[str, str]) -> messages.ModelRequestPart:
    content = _content(field, message)
    text = "".join(part for part in content if isinstance(part, str))
    if message.role == "system":
        return messages.SystemPromptPart(text)
    if message.role == "user":
        return messages.UserPromptPart(text if content == [text] else content)
    if (call := message.tool_call_id or "") not in names:
        raise invalid(f"{field}.toolCallId", "it names no call of an earlier message")
    return messages.ToolReturnPart(names[call], text, call)


def _assistant(field: str, message: ChatMessage) -> messages.ModelResponse:
    text = "".join(str(part) for part in _content(field, message))
    calls = [messages.ToolCallPart(call.name, call.arguments or "{}", call.id) for call in message.tool_calls or []]
    for at, call in enumerate(calls):
        if parse_object(call.args) is None:
            raise invalid(f"{field}.toolCalls[{at}].arguments", "pydantic-ai takes a JSON object only")
    return messages.ModelResponse([*([messages.TextPart(text)] if text or not calls else []), *calls])


def _content(field: str, message: ChatMessage) -> list[str | messages.BinaryContent]:
    parts: list[Json] = [{"text": message.content}] if isinstance(message.content, str) else message.content
    return [_content_part(f"{field}.content[{at}]", part, message.role) for at, part in enumerate(parts)]


def _content_part(field: str, part: Json, role: str) -> str | messages.BinaryContent:
    kind, text = str(part.get("type", "text")), part.get("text")
    if kind == "text" and isinstance(text, str) and not part.keys() - {"type", "text"}:
        return text
    key, media_types = _PARTS.get(kind, ("", ()))
    data = holder.get(key) if isinstance(holder := part.get(kind), dict) and role == "user" else None
    if not isinstance(data, str) or data[:5] != "data:" or part != {"type": kind, kind: {key: data}}:
        raise invalid(field, "pydantic-ai takes text, and a user's images and PDFs as data URLs, and nothing else")
    check_data_url(f"{field}.{kind}.{key}", data, media_types)
    return messages.BinaryContent.from_data_uri(data)


def _answer_of(response: messages.ModelResponse, ignored: tuple[str, ...]) -> ProviderAnswer:
    usage, details = response.usage, response.provider_details or {}
    reason = {"tool_call": "tool_calls"}.get(str(response.finish_reason), response.finish_reason)
    message: Json = {"content": "", "refusal": details.get("refusal"), "thinking_blocks": [], "tool_calls": []}
    for part in response.parts:
        if isinstance(part, messages.TextPart):
            message["content"] += part.content
        elif isinstance(part, messages.ThinkingPart) and (part.content or part.signature):
            signed = {"thinking": part.content, "signature": part.signature}
            message["thinking_blocks"].append(signed if part.content else {"data": part.signature})
        elif isinstance(part, messages.ToolCallPart):
            arguments = part.args if isinstance(part.args, str) and part.args else part.args_as_json_str()
            message["tool_calls"].append(tool_call(part.tool_call_id, part.tool_name, arguments))
    choice = {"message": message, "finish_reason": reason or details.get("finish_reason")}
    cache = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    counts: Json = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    counts |= {"prompt_tokens_details": cache, "completion_tokens_details": usage.details}
    counted = read_usage("chat", counts) if usage.has_values() else None
    return read_answer({"model": response.model_name, "choices": [mended(choice)]}, counted, ignored)
