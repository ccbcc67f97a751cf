"""Translations of requests by way of chat completions, and what of an answer has no place in another API. No I/O.

What is left out is named by its path, which has the type of a list's item in brackets, as ``content[text].citations``,
and stands for all that is below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from quintain.apis import messages_requests, responses_requests
from quintain.apis.answer_json import says_something
from quintain.apis.policy import PUBLISHED_FIELDS
from quintain.apis.translation import Json, Translation, check_turn, objects
from quintain.contracts.api_request import ApiName
from quintain.contracts.values import shorten
from quintain.errors import BadRequest

#: The APIs that are translated to chat requests and from them: the settings of each, and its conversations.
_TRANSLATED: Final[Mapping[ApiName, Any]] = {"responses": responses_requests, "messages": messages_requests}

#: The fields of a chat request → their names in the API that a request was translated from, of which it has one.
_OWN_NAMES: Final[Mapping[ApiName, Mapping[str, tuple[str, ...]]]] = {
    "chat": {"max_tokens": ("max_tokens", "max_completion_tokens")},
    "responses": {
        **{field.chat: (field.own,) for field in responses_requests.FIELDS},
        "messages": ("input",),
        "logprobs": ("include", "top_logprobs"),
    },
    "messages": {
        **{field.chat: (field.own,) for field in messages_requests.FIELDS},
        "parallel_tool_calls": ("tool_choice.disable_parallel_tool_use",),
    },
}
_IN_A_MESSAGE = re.compile(r"messages(?:\[(\d{1,9})\]|\.(\d{1,9}))(.*)", re.DOTALL)

#: The APIs whose requests are conversations.
CONVERSATION_APIS: Final[frozenset[ApiName]] = frozenset({"chat", *_TRANSLATED})


def request_to_chat(api: ApiName, values: Mapping[str, object], translation: Translation) -> Json:
    """Return a request as a chat request. Raises `BadRequest`, which names the field."""
    given = {name: value for name, value in values.items() if value is not None}
    return given if api == "chat" else _translated(api, _TRANSLATED[api].request_to_chat, given, translation)


def request_from_chat(api: ApiName, chat: Json, translation: Translation) -> Json:
    """Return a chat request as a request of this API. Raises `BadRequest`, which names the field."""
    messages = chat.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: it is a list of at least one message")
    for index, message in enumerate(messages):
        check_turn(f"messages[{index}]", message)
    return chat if api == "chat" else _translated(api, _TRANSLATED[api].request_from_chat, chat, translation)


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


#: The parts of an answer that every other API has a place for. Ids and times are Quintain's own in each answer.
_CARRIED: Final[Mapping[ApiName, frozenset[str]]] = {
    "chat": frozenset({
        "id", "object", "created", "model", "choices[].index", "choices[].finish_reason", "choices[].message.role",
        "choices[].message.content", "choices[].message.content[text].type",
        "choices[].message.content[text].text", "choices[].message.content[thinking]", "choices[].message.content[]",
        "choices[].message.function_call.name", "choices[].message.function_call.arguments",
        "choices[].message.refusal", "choices[].message.reasoning_content",
        "choices[].message.reasoning", "choices[].message.thinking_blocks", "choices[].message.tool_calls[function]",
        "choices[].message.tool_calls[]", "choices[].logprobs.content", "usage.prompt_tokens",
        "usage.completion_tokens", "usage.total_tokens", "usage.prompt_tokens_details.cached_tokens",
        "usage.prompt_tokens_details.cache_write_tokens", "usage.completion_tokens_details.reasoning_tokens",
    }),
    "messages": frozenset({
        "id", "type", "role", "model", "stop_reason", "content[text].type", "content[text].text",
        "content[tool_use].type", "content[tool_use].id", "content[tool_use].name", "content[tool_use].input",
        "content[thinking]", "content[redacted_thinking]", "usage.input_tokens", "usage.output_tokens",
        "usage.cache_read_input_tokens", "usage.cache_creation_input_tokens",
        "usage.output_tokens_details.thinking_tokens",
    }),
    "responses": frozenset({
        "id", "object", "created_at", "completed_at", "model", "status", "incomplete_details", "output[message].type",
        "output[message].id", "output[message].role", "output[message].status",
        "output[message].content[output_text].type", "output[message].content[output_text].text",
        "output[message].content[output_text].logprobs", "output[message].content[refusal]",
        "output[function_call].type", "output[function_call].id", "output[function_call].call_id",
        "output[function_call].name", "output[function_call].arguments", "output[function_call].status",
        "output[reasoning].type", "output[reasoning].id", "output[reasoning].status", "output[reasoning].summary",
        "output[reasoning].content", "output[reasoning].encrypted_content", "usage.input_tokens",
        "usage.output_tokens", "usage.total_tokens", "usage.input_tokens_details.cached_tokens",
        "usage.input_tokens_details.cache_write_tokens", "usage.output_tokens_details.reasoning_tokens",
        # An answer of this API repeats the request.
        *(PUBLISHED_FIELDS["responses"] - {"service_tier", "moderation"}),
    }),
}  # fmt: skip

#: Of these, what one API has no place for.
_LACKING: Final[Mapping[ApiName, frozenset[str]]] = {
    "messages": frozenset({"choices[].logprobs.content", "output[message].content[output_text].logprobs"})
}

#: Values that say no more than their absence.
_DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "service_tier": ("default", "standard"),
    "usage.service_tier": ("default", "standard"),
}


def left_out(source: ApiName, target: ApiName | None, answer: Json) -> list[str]:
    """Return the paths of what a whole answer of one API says, and its translation to another one does not; None stands
    for what a conversation is told."""
    if source == target:
        return []
    carried = _CARRIED[source] - (_LACKING.get(target, frozenset()) if target else frozenset())
    begun = {path[:at] for path in _CARRIED[source] for at, letter in enumerate(path) if letter in ".["}
    # A translated answer has one choice.
    others = {f"choices[{index}]" for index in range(1, len(objects(answer.get("choices"))))}
    return sorted({*others, *(shorten(path) for path in _without_place("", answer, carried, begun))})


def _without_place(path: str, value: Any, carried: frozenset[str], begun: set[str]) -> Iterator[str]:
    # A text may be a list of parts too, of which some have no place, and is nothing else.
    is_carried = path in carried and (isinstance(value, str) or path not in begun)
    if is_carried or not says_something(value) or value in _DEFAULTS.get(path, ()):
        return
    if path and path not in begun:
        yield path
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _without_place(f"{path}.{name}" if path else str(name), member, carried, begun)
    elif isinstance(value, list):
        for item in value:
            kind = item.get("type") if isinstance(item, dict) else None
            yield from _without_place(f"{path}[{kind or ''}]", item, carried, begun)
    else:
        yield path
