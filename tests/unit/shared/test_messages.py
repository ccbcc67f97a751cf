"""What every message promises: ``null`` is absent, the unknown ignored, camelCase, frozen, sentences without values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from quintain.contracts import invoke, ledger
from quintain.contracts import session as session_messages
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, content_text
from quintain.contracts.message import Message
from quintain.contracts.values import NumberModel, sanitize_request_id
from quintain.errors import BadRequest

SECRET = "hunter2 and its prompt"

EVERY_MESSAGE = sorted(
    {
        kind
        for module in (invoke, ledger, session_messages)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    },
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", EVERY_MESSAGE)
def test_every_key_of_every_message_is_camel_case(kind: type[Message]) -> None:
    keys = [field.alias or name for name, field in kind.model_fields.items()]
    assert keys == [key for key in keys if "_" not in key and key[0].islower()]


def test_null_means_absent() -> None:
    nothing = json.dumps({"question": "x", **dict.fromkeys(("systemPrompt", "target", "settings", "metadata"))})
    assert InvokeRequest.from_wire(nothing) == InvokeRequest(question="x")
    ask = b'{"defaultTarget": "a", "maxCalls": null, "allowedTargets": null, "label": null}'
    assert session_messages.OpenSession.from_wire(ask) == session_messages.OpenSession(default_target="a")


def test_null_inside_the_providers_own_objects_is_kept() -> None:
    schema = {"enum": ["a", None], "default": None, "more": [{"x": None}]}
    settings = InvokeSettings(response_format={"type": "json_schema", "json_schema": schema})
    assert InvokeSettings.from_wire(settings.to_wire()) == settings


def test_unknown_keys_are_ignored_except_settings_which_a_worker_refuses_by_name() -> None:
    body = {
        "question": "x",
        "somethingNew": {"deep": [1]},
        "settings": {"temperature": 0.5, "newSetting": True, "absent": None},
    }
    request = InvokeRequest.from_wire(json.dumps(body))
    assert request.model_copy(update={"settings": None}) == InvokeRequest(question="x")
    assert (request.settings.temperature, request.settings.unknown()) == (0.5, {"newSetting"})
    assert InvokeRequest.from_wire(request.to_wire()).settings is not None
    assert json.loads(request.to_wire())["settings"] == {"temperature": 0.5, "newSetting": True}


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1), st.one_of(st.none(), st.text()), st.dictionaries(st.text(), st.text(), max_size=3))
def test_any_request_arrives_as_it_was_sent(question: str, prompt: str | None, more: dict[str, str]) -> None:
    request = InvokeRequest(question=question, system_prompt=prompt, metadata=more)
    assert InvokeRequest.from_wire(request.to_wire()) == request


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        *((InvokeRequest, body, "question") for body in ("{}", '{"question": ""}', '{"messages": []}')),
        (InvokeRequest, f'{{"question": "{SECRET}", "messages": [{{"role": "user", "content": "x"}}]}}', "messages"),
        (InvokeRequest, '{"question": "x", "target": "a", "provider": "b"}', "target and provider"),
        (InvokeRequest, f'{{"question": {{"a": "{SECRET}"}}}}', "question"),
        (InvokeRequest, f'{{"messages": [{{"role": "user"}}, {{"role": "{SECRET}"}}]}}', "messages.0.content"),
        (InvokeRequest, '{"question": "x", "settings": {"maxTokens": 0}}', "settings.maxTokens"),
        (InvokeRequest, '{"question": "x", "attempt": -1}', "attempt"),
        *((InvokeRequest, body, "object") for body in (f'["{SECRET}"]', "null")),
        *((InvokeRequest, body, "not JSON") for body in (SECRET, b"\xff\xfe", b"", "[" * 100_000)),
        (session_messages.OpenSession, "{}", "defaultTarget"),
        (session_messages.OpenSession, '{"defaultTarget": "a", "expiresInSeconds": 0}', "expiresInSeconds"),
        (session_messages.OpenSession, '{"defaultTarget": "a", "expiresInSeconds": 1e400}', "expiresInSeconds"),
        (session_messages.OpenSession, '{"defaultTarget": "a", "deadlineSeconds": 43201}', "deadlineSeconds"),
        (session_messages.OpenSession, '{"defaultTarget": "a", "maxCalls": -1}', "maxCalls"),
        (session_messages.OpenSession, '{"defaultTarget": "a", "label": "x\\u0000"}', "label"),
        (session_messages.ReserveCalls, '{"requestIds": ["\\u0000"], "deadline": 1}', "requestIds.0"),
        (
            ledger.Register,
            '{"workerId": "", "incarnation": "i", "targets": [{"name": "a", "provider": "", "maxConcurrency": 20000}]}',
            "targets.0.maxConcurrency",
        ),
        (ledger.AdmitReply, f'{{"items": [], "now": {2**53}}}', "now"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_field(kind: type[Message], body: str | bytes, field: str) -> None:
    with pytest.raises(BadRequest, match=rf"\b{re.escape(field)}\b") as refusal:
        kind.from_wire(body)
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize(
    "body",
    [
        f'{{"question": "x", "attempt": "{SECRET}"}}',
        f'{{"question": ["{SECRET}"]}}',
        f'{{"question": "x", "settings": "{SECRET}"}}',
        f'{{"question": "x", "settings": {{"temperature": "{SECRET}"}}}}',
        f'{{"messages": [{{"role": "{SECRET}", "content": "{SECRET}"}}]}}',
        f'{{"messages": [{{"role": "user", "content": {{"{SECRET}": 1}}}}]}}',
        f'{{"question": "{SECRET}"',
        SECRET,
    ],
)
def test_a_sentence_never_shows_what_was_written(body: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        InvokeRequest.from_wire(body)
    for word in SECRET.split():
        assert word not in refusal.value.message
    assert refusal.value.__cause__ is None


def test_an_error_of_the_validation_itself_shows_nothing_either() -> None:
    with pytest.raises(ValidationError) as error:
        InvokeRequest.model_validate({"question": [SECRET]})
    assert SECRET not in str(error.value)


def test_a_sentence_is_short_however_long_the_key_it_names() -> None:
    with pytest.raises(BadRequest) as refusal:
        InvokeRequest.from_wire(json.dumps({"question": "x", "metadata": {"k" * 100_000: 1}}))
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize("text", ["r", "-", "ü" * 128, "a b\n"])
def test_a_request_id_is_kept_as_it_is(text: str) -> None:
    assert sanitize_request_id(text) == text


@pytest.mark.parametrize("text", ["", "x" * 129, "a\0b", "\ud800"])
def test_what_is_no_request_id_is_kept_as_one_like_it(text: str) -> None:
    kept = sanitize_request_id(text)
    assert kept != text
    assert ledger.CallKey(session_id="s", request_id=kept).to_wire()


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ä", "x" * 64, "a\n", "#", "*", "a.#"])
def test_a_targets_name_may_be_nothing_else(name: str) -> None:
    with pytest.raises(BadRequest, match="defaultTarget"):
        session_messages.OpenSession.from_wire(json.dumps({"defaultTarget": name}))


@pytest.mark.parametrize(("length", "ok"), [(0, False), (1, True), (128, True), (129, False)])
def test_a_request_id_has_1_to_128_characters(length: int, ok: bool) -> None:
    body = json.dumps({"requestIds": ["x" * length], "deadline": 1})
    if ok:
        assert session_messages.ReserveCalls.from_wire(body).request_ids == ["x" * length]
    else:
        with pytest.raises(BadRequest, match=r"requestIds\.0"):
            session_messages.ReserveCalls.from_wire(body)


@pytest.mark.parametrize(
    ("target", "provider", "names"),
    [(None, None, None), ("a", None, "a"), (None, "b", "b"), ("a", "a", "a"), ("", None, "")],
)
def test_a_target_may_be_named_in_either_spelling(target: str | None, provider: str | None, names: str | None) -> None:
    assert InvokeRequest(question="x", target=target, provider=provider).requested_target == names


def test_a_question_is_a_conversation_of_one_with_the_system_prompt_first() -> None:
    turns = InvokeRequest(question="why?", system_prompt="be brief").conversation()
    assert [(turn.role, turn.content) for turn in turns] == [("system", "be brief"), ("user", "why?")]
    told = [ChatMessage(role="user", content="a"), ChatMessage(role="assistant", content="b")]
    assert InvokeRequest(messages=told).conversation() == told


def test_the_text_of_parts_is_the_text_parts_joined() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"text": "b"},
        {"text": 7},
    ]
    assert content_text(parts) == "ab"
    assert content_text("as it is") == "as it is"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('"settings": {"temperature": %s}', "settings.temperature"),
        ('"settings": {"responseFormat": {"a": [1, {"b": %s}]}}', "settings.responseFormat.a.1.b"),
        ('"settings": {"tools": [{}, {"function": {"x": %s}}]}', "settings.tools.1.function.x"),
        ('"settings": {"toolChoice": {"x": %s}}', "settings.toolChoice.x"),
        ('"settings": {"seed": %s}', "settings.seed"),
        ('"messages": [{"role": "user", "content": [{"x": %s}]}], "question": null', "messages.0.content.0.x"),
        ('"metadata": {"x": %s}', "metadata.x"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_by_name_in_json_and_in_python(
    body: str, place: str, number: str
) -> None:
    text = '{"question": "x", ' + body % number + "}"
    with pytest.raises(BadRequest, match=f"^{re.escape(place)}: "):
        InvokeRequest.from_wire(text)
    with pytest.raises(ValidationError):
        InvokeRequest.model_validate(json.loads(text))


def models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for below in model.__subclasses__():
        yield from (below, *models_below(below))


def types_of(schema: dict[str, Any]) -> set[str]:
    if "enum" in schema or "const" in schema:
        return set()
    return {schema.get("type", ""), *(kind for each in schema.get("anyOf", []) for kind in types_of(each))}


def test_true_is_no_number_in_any_message_or_configuration() -> None:
    checked = 0
    for model in models_below(NumberModel):
        for name, schema in model.model_json_schema().get("properties", {}).items():
            if types_of(schema) & {"integer", "number"} and "boolean" not in types_of(schema):
                checked += 1
                for validate in (
                    model.model_validate,
                    lambda fields, of=model: of.model_validate_json(json.dumps(fields)),
                ):
                    with pytest.raises(ValidationError) as caught:
                        validate({name: True})
                    assert (name,) in {error["loc"][:1] for error in caught.value.errors()}, (model, name)
    assert checked > 60


def test_a_session_of_true_calls_is_refused_and_other_forms_of_a_number_are_not() -> None:
    with pytest.raises(BadRequest, match="maxCalls"):
        session_messages.OpenSession.from_wire(b'{"defaultTarget": "a", "maxCalls": true}')
    for number in (b"5", b"5.0"):
        body = b'{"defaultTarget": "a", "maxCalls": ' + number + b"}"
        assert session_messages.OpenSession.from_wire(body).max_calls == 5


def test_a_number_in_another_form_does_not_reserve_all_calls() -> None:
    for reserve, expected in {'"1"': 1, "1.0": 1, "1": 1, "0": 0, "true": True, "false": False}.items():
        body = f'{{"defaultTarget": "a", "maxCalls": 7, "reserve": {reserve}}}'.encode()
        read = session_messages.OpenSession.from_wire(body).reserve
        assert (read, type(read)) == (expected, type(expected))
    with pytest.raises(BadRequest, match="reserve"):
        session_messages.OpenSession.from_wire(b'{"defaultTarget": "a", "reserve": "yes"}')


@pytest.mark.parametrize(
    "share", ['"weight": 0', '"weight": 101', '"weight": NaN', '"weight": 2.5', '"priority": "urgent"', '"priority": 1']
)
def test_what_is_no_share_of_a_quota_is_refused_by_name(share: str) -> None:
    for kind, rest in ((session_messages.OpenSession, "defaultTarget"), (session_messages.AmendSession, "sessionId")):
        with pytest.raises(BadRequest, match=share.split('"')[1]):
            kind.from_wire(f'{{"{rest}": "a", {share}}}'.encode())
