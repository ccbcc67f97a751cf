"""What a provider is sent for a request: the caller's own JSON where both speak the same API, else its translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from quintain.apis.policy import PUBLISHED_FIELDS, Policy, check_request, fields_without_effect
from quintain.apis.requests import CONVERSATION_APIS, own_name, request_from_chat, request_to_chat
from quintain.apis.translation import Json, Translation, invalid, text_of, tool_call
from quintain.config.targets import AnthropicTarget, OpenAITarget
from quintain.contracts.api_request import ApiName, ApiRequest
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, OutputMessage
from quintain.contracts.values import non_finite_path
from quintain.errors import BadRequest
from quintain_worker.providers.conversation import named_as_sent, settings_of, with_defaults, with_field

#: Where each API is, below a target's URL.
PATHS: Final[Mapping[ApiName, str]] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "completions": "/completions",
    "embeddings": "/embeddings",
    "messages": "/v1/messages",
}

#: The name of a request's model, and of its endpoint, in messages about it.
API_WORDS: Final[Mapping[ApiName, str]] = {
    "chat": "openai",
    "responses": "openai (api: responses)",
    "completions": "openai (completions)",
    "embeddings": "openai (embeddings)",
    "messages": "anthropic",
}


#: The names that the longest answer has in the chat API.
_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})


class ProviderCall(NamedTuple):
    """One request as a provider gets it. ``ignored`` are the caller's fields that it is made without."""

    api: ApiName
    body: bytes
    headers: Mapping[str, str]
    ignored: tuple[str, ...] = ()


class RequestBuilder:
    """Builds the requests to one target's provider: its APIs, its settings, and what it lets its callers ask."""

    def __init__(self, target: OpenAITarget | AnthropicTarget) -> None:
        self.apis: tuple[ApiName, ...] = target.apis
        self._model = target.model
        self._takes_stream_options = isinstance(target, AnthropicTarget) or target.takes_stream_options
        self._defaults = target.default_settings
        self._default_chat = settings_of(self._defaults)
        #: The API in which it is asked for conversations: chat where it has it.
        ordered: tuple[ApiName, ...] = ("chat", "responses", "messages")
        self._conversation_api = next((api for api in ordered if api in self.apis), None)
        self._policy = Policy(is_vendor=target.is_vendors_host, allow=target.allow, image_urls=target.image_urls)
        #: The target's settings as fields of each API's requests, made at the first call in it.
        self._defaults_by_api: dict[ApiName, Json] = {}
        self._caches_prompts = target.settings is None or target.settings.cache_prompt == "auto"
        #: For what is asked in other words than the provider's own.
        self._neutral_policy = self._policy._replace(is_vendor=False)

    def check(self, request: ApiRequest) -> None:
        """Check what a caller asks of this target's provider. Raises `BadRequest`, which names the field."""
        is_own = request.api in self.apis
        if not is_own and (request.api not in CONVERSATION_APIS or self._conversation_api is None):
            known = ", ".join(self.apis)
            raise BadRequest(f"{request.api}: this target's provider has no such endpoint; it has {known}")
        check_request(request.api, request.body.values, self._policy if is_own else self._neutral_policy)

    def of_api_request(self, request: ApiRequest, *, stream: bool = False) -> ProviderCall:
        """Return the provider's request for a caller's, which was checked: in the caller's API where the target has it.

        Raises `BadRequest`, which names the field.
        """
        without_effect = fields_without_effect(request.api, request.body.values)
        if without_effect:
            request = request._replace(body=request.body.without(*without_effect))
        if request.api in self.apis:
            return ProviderCall(request.api, self._own_body(request, stream=stream), request.headers, without_effect)
        own = self._conversation_api
        assert own is not None, "the request was checked"
        translation = Translation(API_WORDS[own], ignore_unsupported=request.ignore_unsupported)
        for name in without_effect:
            translation.note(name)
        for name in sorted(request.headers):
            if name != "anthropic-version":
                translation.leave_out(name)
        chat = request_to_chat(request.api, request.body.values, translation)
        # So far they are named as the caller named them.
        named = len(translation.ignored)
        try:
            call = self._from_chat(own, chat, translation, stream=stream)
        except BadRequest as fault:
            field, _, reason = fault.message.partition(": ")
            name = own_name(request.api, field, request.body.values, translation)
            raise with_field(fault, name, name, reason) from None
        others = (own_name(request.api, field, request.body.values, translation) for field in call.ignored[named:])
        return call._replace(ignored=(*call.ignored[:named], *others))

    def of_conversation(self, request: InvokeRequest, *, stream: bool = False) -> ProviderCall:
        """Return the provider's request for a conversation. Raises `BadRequest`, which names the field as it stands in
        the request."""
        own = self._conversation_api
        if own is None:
            raise BadRequest("question: this target's provider has no endpoint for conversations")
        settings = with_defaults(request.settings, self._defaults)
        translation = Translation(API_WORDS[own], ignore_unsupported=settings.unsupported == "ignore")
        with named_as_sent(request):
            chat = chat_of(request, settings, translation)
            check_request("chat", chat, self._neutral_policy)
            return self._from_chat(own, chat, translation, extra=settings.extra_body, stream=stream)

    def _from_chat(
        self,
        api: ApiName,
        chat: Json,
        translation: Translation,
        *,
        extra: Mapping[str, Any] | None = None,
        stream: bool,
    ) -> ProviderCall:
        defaults = {name: value for name, value in self._default_chat.items() if chat.get(name) is None}
        if chat.get("max_completion_tokens") is not None:
            defaults.pop("max_tokens", None)
        body = request_from_chat(api, {**chat, **defaults}, translation)
        if api == "chat" and self._policy.is_vendor:
            # Other servers know only ``max_tokens``.
            if (limit := body.pop("max_tokens", None)) is not None:
                body.setdefault("max_completion_tokens", limit)
            for name in sorted(body.keys() - PUBLISHED_FIELDS["chat"]):
                translation.leave_out(name, value=body.pop(name))
        if api == "chat":
            body["messages"] = [_without_foreign_fields(message, translation) for message in body["messages"]]
        if extra:
            for name in extra.keys() & body.keys():
                raise invalid(f"extra_body.{name}", "it may not be set here: a setting of its own sends it already")
            check_request(api, extra, self._policy, "extra_body.")
            body |= extra
        body.pop("store", None)
        body |= self._decided(api, stream=stream)
        written = _json_bytes(body)
        # What a caller has marked by itself stays as it is. In a text its quotes are escaped.
        if api == "messages" and self._caches_prompts and b'"cache_control":' not in written:
            written = _json_bytes(with_cache_marks(body)) if len(written) >= MIN_CACHED_CHARACTERS else written
        return ProviderCall(api, written, {}, tuple(translation.ignored))

    def _defaults_of(self, api: ApiName) -> Json:
        """Return the target's settings as fields of a request of this API: of those that it has."""
        own: Json = {}
        if api in CONVERSATION_APIS:
            # A conversation cannot be empty; its fields are the caller's in any case.
            chat = {**self._default_chat, "messages": [{"role": "user", "content": "-"}]}
            own = request_from_chat(api, chat, Translation(API_WORDS[api], ignore_unsupported=True))
            if api == "chat" and self._policy.is_vendor and "max_tokens" in own:
                own["max_completion_tokens"] = own.pop("max_tokens")
        elif api == "completions":
            own = {name: value for name, value in self._default_chat.items() if name in PUBLISHED_FIELDS[api]}
        own |= (self._defaults.extra_body or {}) if api != "embeddings" else {}
        return {name: own[name] for name in own.keys() - {"messages", "input"} if own[name] is not None}

    def _own_body(self, request: ApiRequest, *, stream: bool) -> bytes:
        """Return the caller's own body, with the target's settings where the caller sets none."""
        given = {name for name, value in request.body.values.items() if value is not None}
        if given & _LIMITS:
            given |= _LIMITS
        if (own := self._defaults_by_api.get(request.api)) is None:
            own = self._defaults_by_api[request.api] = self._defaults_of(request.api)
        missing = {name: value for name, value in own.items() if name not in given}
        members = {**missing, **self._decided(request.api, stream=stream)}
        return request.body.without("store").with_members(members).text.encode()

    def _decided(self, api: ApiName, *, stream: bool) -> Json:
        """Return the members that no caller sets; the Responses API stores answers unless told otherwise."""
        members: Json = {"model": self._model}
        if api == "responses":
            members["store"] = False
        if stream:
            members["stream"] = True
            if api in {"chat", "completions"} and self._takes_stream_options:
                members["stream_options"] = {"include_usage": True}
        return members

    def check_defaults(self) -> None:
        """Check the target's own settings. Raises `BadRequest`, which names the setting."""
        if self._conversation_api is not None:
            self.of_conversation(InvokeRequest(question="-"))
        else:
            check_request(self.apis[0], self._defaults.extra_body or {}, self._policy, "settings.extra_body.")


def _json_bytes(body: Json) -> bytes:
    """Return the body of a request. Raises `BadRequest` for what JSON or UTF-8 cannot write."""
    try:
        written = to_json(body)
    except PydanticSerializationError:
        raise BadRequest("the request holds half of a surrogate pair, which UTF-8 cannot write") from None
    # Only what is written so is looked for.
    if (b"NaN" in written or b"Infinity" in written) and (place := non_finite_path(body)) is not None:
        raise invalid(place, "JSON has finite numbers only")
    return written


def chat_of(request: InvokeRequest, settings: InvokeSettings, translation: Translation) -> Json:
    """Return a conversation as a chat request. Raises `BadRequest` for a setting of no known name."""
    chat = settings_of(settings, translation)
    if (modalities := chat.pop("modalities", None)) not in (None, ["text"]):
        translation.leave_out("modalities", "answers are text only", modalities)
    if settings.tools is not None and not settings.tools:
        raise invalid("tools", "it is empty; leave it out")
    if settings.tool_choice not in (None, "none") and not settings.tools:
        raise invalid("tool_choice", "there are no settings.tools to choose from; leave it out")
    chat["messages"] = [chat_message(message) for message in request.conversation()]
    return chat


def chat_message(message: ChatMessage) -> Json:
    """Return one message as OpenAI writes it, with the reasoning where other servers keep it."""
    content = message.content
    if isinstance(content, list):
        content = [part if "type" in part else {"type": "text", **part} for part in content]
        if message.role != "user" and all(part.keys() == {"type", "text"} for part in content):
            # Not every server takes parts here.
            content = text_of(content)
    written: Json = {"role": message.role, "content": content, **calls_and_thinking(message)}
    if message.tool_calls:
        written["content"] = content or None
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return {**written, "is_error": True} if message.is_error else written


def calls_and_thinking(message: ChatMessage | OutputMessage) -> Json:
    """Return the calls and the reasoning of a message as fields of a chat message."""
    fields: Json = {}
    if message.tool_calls:
        fields["tool_calls"] = [tool_call(call.id, call.name, call.arguments) for call in message.tool_calls]
    if message.reasoning:
        fields["thinking_blocks"] = [
            {"type": "redacted_thinking", "data": piece.redacted}
            if piece.redacted is not None
            else {
                "type": "thinking",
                "thinking": piece.text,
                **({"signature": piece.signature} if piece.signature else {}),
            }
            for piece in message.reasoning
        ]
    return fields


#: The length of the shortest prompt that is marked: Anthropic caches none of fewer than 512 tokens, and by model of
#: fewer than up to 4,096. A mark on a shorter one has no effect, and costs nothing.
MIN_CACHED_CHARACTERS = 2048

_CACHE_MARK: Final = {"cache_control": {"type": "ephemeral"}}


def with_cache_marks(body: Json) -> Json:
    """Return a messages request with marks at the ends of what later requests are likely to begin with, too.

    Of a request with tools, which an agent makes, these are its tools, its system prompt and its last turn, which the
    next request repeats. Of others it is the system prompt, as that of a judge, if it is long.
    """
    tools, system, turns = body.get("tools"), body.get("system"), body["messages"]
    marked: Json = {}
    if tools:
        marked["tools"] = _marked(tools)
        marked["messages"] = [*turns[:-1], turns[-1] | {"content": _marked(turns[-1]["content"])}]
    if system and (tools or len(text_of(system)) >= MIN_CACHED_CHARACTERS):
        marked["system"] = _marked(system)
    return body | marked


def _marked(content: Any) -> Any:
    """Return tools or blocks with a mark at the last one, if it can have one: thinking cannot."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    last = blocks[-1] if isinstance(blocks, list) and blocks else None
    if not isinstance(last, dict) or last.get("type") in {"thinking", "redacted_thinking"}:
        return content
    return [*blocks[:-1], last | _CACHE_MARK]


#: Fields of messages that are not OpenAI's own: no server of its chat API takes them back.
_FOREIGN = ("thinking_blocks", "reasoning_content", "is_error")


def _without_foreign_fields(message: Json, translation: Translation) -> Json:
    if message.keys().isdisjoint(_FOREIGN):
        return message
    if message.keys() & {"thinking_blocks", "reasoning_content"}:
        translation.note("messages.reasoning")
    if message.get("is_error"):
        translation.note("messages.is_error")
    return {name: value for name, value in message.items() if name not in _FOREIGN}
