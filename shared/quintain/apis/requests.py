"""The translations of requests between APIs; OpenAI's chat completions are the neutral form between them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from quintain.apis import messages_from_chat, messages_to_chat, responses_from_chat, responses_to_chat
from quintain.apis.translation import Json, Translation, check_turn
from quintain.contracts.api_request import ApiName
from quintain.errors import BadRequest

_REQUEST_TO_CHAT: Final[Mapping[ApiName, Callable[[Json, Translation], Json]]] = {
    "responses": responses_to_chat.request_to_chat,
    "messages": messages_to_chat.request_to_chat,
}
_REQUEST_FROM_CHAT: Final[Mapping[ApiName, Callable[[Json, Translation], Json]]] = {
    "responses": responses_from_chat.request_from_chat,
    "messages": messages_from_chat.request_from_chat,
}
#: The fields of a chat request → their names in the API that a request was translated from, of which it has one.
_OWN_NAMES: Final[Mapping[ApiName, Mapping[str, tuple[str, ...]]]] = {
    "chat": {"max_tokens": ("max_tokens", "max_completion_tokens")},
    "responses": {
        "messages": ("input",),
        "max_tokens": ("max_output_tokens",),
        "logprobs": ("include", "top_logprobs"),
        "reasoning_effort": ("reasoning.effort",),
        "verbosity": ("text.verbosity",),
        "response_format": ("text.format",),
    },
    "messages": {
        "stop": ("stop_sequences",),
        "user": ("metadata.user_id",),
        "reasoning_effort": ("output_config.effort",),
        "response_format": ("output_config.format",),
        "parallel_tool_calls": ("tool_choice.disable_parallel_tool_use",),
    },
}
_IN_A_MESSAGE = re.compile(r"messages(?:\[(\d{1,9})\]|\.(\d{1,9}))(.*)", re.DOTALL)

#: The APIs whose requests are conversations.
CONVERSATION_APIS: Final[frozenset[ApiName]] = frozenset({"chat", *_REQUEST_TO_CHAT})


def request_to_chat(api: ApiName, values: Mapping[str, object], translation: Translation) -> Json:
    """Return a request as a chat request. Raises `BadRequest`, which names the field."""
    given = {name: value for name, value in values.items() if value is not None}
    return given if api == "chat" else _translated(api, _REQUEST_TO_CHAT[api], given, translation)


def request_from_chat(api: ApiName, chat: Json, translation: Translation) -> Json:
    """Return a chat request as a request of this API. Raises `BadRequest`, which names the field."""
    messages = chat.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: it is a list of at least one message")
    for index, message in enumerate(messages):
        check_turn(f"messages[{index}]", message)
    return chat if api == "chat" else _translated(api, _REQUEST_FROM_CHAT[api], chat, translation)


def _translated(
    api: ApiName, translate: Callable[[Json, Translation], Json], values: Json, translation: Translation
) -> Json:
    try:
        return translate(values, translation)
    except (KeyError, TypeError, AttributeError, ValueError):
        # A value of another type than the API's: its vendor would refuse it, and charge for it.
        raise BadRequest(
            f"The body cannot be translated to or from the API {api!r}: a field has a wrong type"
        ) from None


def own_name(api: ApiName, field: str, values: Mapping[str, object], translation: Translation) -> str:
    """Return the name that a field of a chat request has in the request of this API that was translated to it."""
    found = _IN_A_MESSAGE.match(field)
    if found is not None and (index := int(found[1] or found[2])) < len(translation.places):
        return translation.places[index] + found[3]
    names = _OWN_NAMES.get(api, {}).get(re.split(r"[.\[]", field)[0], ())
    return next((name for name in names if name.partition(".")[0] in values), field)
