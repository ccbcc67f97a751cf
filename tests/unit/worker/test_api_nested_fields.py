"""Every field inside the vendors' requests, from the types of their packages: none is dropped without a word.

For each type that a field may have, at any depth, a request with it is translated to the other APIs. What is refused is
refused by its place; whatever is accepted changes what the provider gets, or is named as ignored.
"""

from __future__ import annotations

import itertools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import anthropic.types.beta.beta_tool_union_param
import anthropic.types.beta.message_create_params
import anthropic.types.message_create_params
import openai.types.chat.completion_create_params
import openai.types.responses.response_create_params
import openai.types.responses.tool_param
import pytest
import typing_extensions

from quintain.contracts.api_request import ApiName, ApiRequest, json_text
from quintain.errors import BadRequest
from quintain_worker.providers.model_requests import ProviderCall, RequestBuilder
from support.model_wires import ANTHROPIC, CHAT, RESPONSES

Path = tuple[str | int, ...]

REQUESTS: Mapping[ApiName, Any] = {
    "chat": openai.types.chat.completion_create_params.CompletionCreateParamsNonStreaming,
    "responses": openai.types.responses.response_create_params.ResponseCreateParamsNonStreaming,
    "messages": anthropic.types.message_create_params.MessageCreateParamsNonStreaming,
}

#: What each request has besides the field with the type.
QUESTIONS: Mapping[ApiName, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "user", "content": "q"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    "responses": {"input": "q", "tools": [{"type": "function", "name": "f"}]},
    "messages": {
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
}

#: Fields whose values are no texts of the caller's own.
WELL_FORMED: Mapping[str, str] = {
    **dict.fromkeys(("url", "image_url", "file_url", "server_url"), "https://example.org/x"),
    "file_data": "data:application/pdf;base64,QUJD",
    "data": "QUJD",
    "arguments": '{"a": 1}',
}

#: What changes nothing where it is left out: defaults, labels, and what servers say of their own items.
WITHOUT_EFFECT: Mapping[str, frozenset[object]] = {
    "detail": frozenset({"auto"}),
    "verbosity": frozenset({"medium"}),
    "format": frozenset({"text"}),
    "media_type": frozenset({"text/plain"}),
}
LABELS = frozenset(
    {"input.id", "input.status", "response_format.json_schema.name", "response_format.json_schema.strict",
     "text.format.name", "text.format.strict"}
)  # fmt: skip

BUILDERS: Mapping[ApiName, RequestBuilder] = {
    "chat": RequestBuilder(CHAT.target("http://127.0.0.1", model="m")),
    "responses": RequestBuilder(RESPONSES.target("http://127.0.0.1", model="m")),
    "messages": RequestBuilder(ANTHROPIC.target("http://127.0.0.1", model="m")),
}

_numbers = itertools.count()


def samples_of(hint: Any, name: str, outer: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """Values of a type: one of each type that it or its fields may have, with all fields."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if typing_extensions.is_typeddict(hint):
        if hint not in outer:
            yield from objects_of(hint, outer | {hint})
    elif origin in (typing_extensions.Required, typing.Required, typing.Annotated):
        yield from samples_of(arguments[0], name, outer)
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from samples_of(one, name, outer) if one is not type(None) else ()
    elif origin is typing.Literal:
        yield from arguments
    elif isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
        yield from ([item] for item in samples_of(arguments[0], name, outer))
    elif hint is str:
        yield WELL_FORMED.get(name, f"text {next(_numbers)}")
    else:
        yield {bool: True, int: 3, float: 0.5}.get(hint, {"k": "v"})


def objects_of(hint: Any, outer: frozenset[Any]) -> Iterator[dict[str, Any]]:
    fields = {
        name: values
        for name, field in typing_extensions.get_type_hints(hint).items()
        if (values := list(samples_of(field, name, outer)))
    }
    base = {name: values[0] for name, values in fields.items()}
    yield base
    yield from ({**base, name: other} for name, values in fields.items() for other in values[1:])


def paths_in(value: object, path: Path = ()) -> Iterator[Path]:
    members: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        yield (*path, key)
        yield from paths_in(member, (*path, key))


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def without(body: Any, path: Path) -> dict[str, Any]:
    """The body without what stands there; the rest of it is shared."""
    changed: Any = body.copy()
    if len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = without(changed[path[0]], path[1:])
    return changed  # type: ignore[no-any-return]


def translated(api: ApiName, own: ApiName, body: dict[str, Any]) -> ProviderCall:
    request = ApiRequest(api, json_text(body))
    BUILDERS[own].check(request)
    return BUILDERS[own].of_api_request(request)


def refused_path(body: dict[str, Any], fault: BadRequest) -> Path:
    """The place in the body that a refusal names."""
    field = re.sub(r"^include\[.*", "include", fault.message.partition(": ")[0])
    steps: list[str | int] = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", field)]
    path = tuple(steps)
    # The field itself, or the message that it was made of, whose parts have other names.
    assert {path, path[:-1], path[:2]} & {(), *paths_in(body)}, fault.message
    return path


def accepted(api: ApiName, own: ApiName, body: dict[str, Any]) -> tuple[dict[str, Any], ProviderCall] | None:
    """The request without the fields that are refused, and its translation; None where the whole is refused."""
    while True:
        try:
            return body, translated(api, own, body)
        except BadRequest as fault:
            path = refused_path(body, fault)
            if len(path) < 2 or path[-1] in {"type", "role"} or not isinstance(path[-1], str):
                return None
            if path not in set(paths_in(body)):
                return None
            body = without(body, path)


def is_without_effect(api: ApiName, body: dict[str, Any], path: Path, ignored: tuple[str, ...]) -> bool:
    names, value = [step for step in path if isinstance(step, str)], at(body, path)
    if body[names[0]] == ["text"]:
        return True
    holder = at(body, path[:-1])
    kind = holder.get("type") if isinstance(holder, dict) else None
    if value in ({}, []) or names[-1] == "type" or value in list(WITHOUT_EFFECT.get(names[-1], ())):
        return True
    if ".".join(names) in LABELS or value == {"type": "text"}:
        return True
    if kind in {"thinking", "redacted_thinking"}:
        return api == "messages" and "messages.reasoning" in ignored
    return bool(set(names) & {re.split(r"[.\]]", name)[-1] for name in ignored})


@pytest.mark.parametrize("own", BUILDERS)
@pytest.mark.parametrize("api", REQUESTS)
def test_no_nested_field_is_dropped_without_a_word(api: ApiName, own: ApiName) -> None:
    dropped: set[str] = set()
    kept = 0
    for name, hint in typing_extensions.get_type_hints(REQUESTS[api]).items():
        for sample in samples_of(hint, name) if name not in {"model", "stream", "n"} else ():
            if (found := accepted(api, own, {**QUESTIONS[api], name: sample})) is None:
                continue
            body, call = found
            kept += 1
            for path in [path for path in paths_in(body) if len(path) > 1 and path[0] == name]:
                try:
                    other = translated(api, own, without(body, path))
                except BadRequest:
                    continue
                is_same = (other.body, other.ignored) == (call.body, call.ignored)
                if is_same and not is_without_effect(api, body, path, call.ignored):
                    dropped.add(f"{'.'.join(str(step) for step in path)} = {at(body, path)!r:.60}")
    assert kept > 20
    assert not dropped


USER = {"role": "user", "content": "a"}
FILE = {"type": "image", "source": {"type": "file"}}
HTML = {"type": "document", "source": {"type": "base64", "media_type": "text/html", "data": "QUJD"}}
LIST_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}

#: What is sent to which API, and the field of the caller's own request that its refusal names.
NAMED: list[tuple[ApiName, ApiName, dict[str, Any], str]] = [
    ("messages", "chat", {"system": "s", "messages": [USER | {"content": [FILE]}]}, "messages.0.content.0.source.type"),
    (
        "messages",
        "responses",
        {"system": "s", "messages": [USER, USER | {"content": [HTML]}]},
        "messages.1.content[0].file.file_data",
    ),
    (
        "responses",
        "messages",
        {"instructions": "s", "input": [USER, LIST_CALL]},
        "input.1.tool_calls[0].function.arguments",
    ),
    ("chat", "messages", {"messages": [USER | {"name": "n"}]}, "messages[0].name"),
]


@pytest.mark.parametrize(("api", "own", "body", "field"), NAMED)
def test_a_refusal_names_the_message_of_the_callers_own_request(
    api: ApiName, own: ApiName, body: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        translated(api, own, {**QUESTIONS[api], **body})
    assert refused.value.message.partition(": ")[0] == refused.value.parameter == field


def test_what_is_ignored_has_its_name_in_the_callers_own_request() -> None:
    document = {"type": "text", "media_type": "text/plain", "data": "d"}
    part = {"type": "document", "source": document, "citations": {"enabled": True}}
    body = {"system": "s", "messages": [{"role": "user", "content": [part]}], "max_tokens": 9, "top_k": 5}
    request = ApiRequest("messages", json_text(body), ignore_unsupported=True)
    call = BUILDERS["responses"].of_api_request(request)
    assert call.ignored == ("messages.0.content.0.citations", "top_k")


#: What Anthropic's beta endpoint takes: the same path, with more fields.
BETA = anthropic.types.beta.message_create_params.MessageCreateParamsNonStreaming

#: Tools whose calls the caller answers itself.
OF_THE_CALLER = re.compile(
    r"function|custom|namespace|apply_patch|local_shell|(computer|bash|text_editor|memory)(_.*)?|browser_toolset_.*"
)


def types_of_tools() -> set[str]:
    """The types of the tools that the vendors run themselves."""
    kinds: list[Any] = [
        *typing.get_args(openai.types.responses.tool_param.ToolParam),
        *typing.get_args(anthropic.types.beta.beta_tool_union_param.BetaToolUnionParam),
    ]
    named = itertools.chain(*(samples_of(typing.get_type_hints(kind).get("type", None), "type") for kind in kinds))
    return {name for name in named if isinstance(name, str) and OF_THE_CALLER.fullmatch(name) is None}


@pytest.mark.parametrize(("api", "hint"), [*REQUESTS.items(), ("messages", BETA)])
def test_a_tool_of_the_vendors_is_refused_wherever_it_may_stand(api: ApiName, hint: Any) -> None:
    tools, places, passed = types_of_tools(), set[tuple[object, ...]](), set[str]()
    for name, field in typing_extensions.get_type_hints(hint).items():
        for sample in samples_of(field, name) if name not in {"model", "tool_choice"} else ():
            body = {**QUESTIONS[api], name: sample}
            found = [path for path in paths_in(sample) if path[-1] == "type" and is_tool(sample, path, tools)]
            places |= {tuple(step for step in path if isinstance(step, str)) for path in found}
            if found:
                try:
                    BUILDERS[api].check(ApiRequest(api, json_text(body)))
                except BadRequest:
                    continue
                passed.add(f"{name}.{'.'.join(map(str, found[0]))} = {at(sample, found[0])}")
    assert not passed
    assert places or api == "chat"


def is_tool(sample: Any, path: Path, tools: set[str]) -> bool:
    # A block may say which tool of the provider called another one: that tool must be offered elsewhere.
    kind = at(sample, path)
    return isinstance(kind, str) and kind in tools and "caller" not in path
