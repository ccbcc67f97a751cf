"""What a model's provider is sent over the real wire: in its API's own words, byte for byte, or refused by name."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest
from support.model_calls import call, refused_call, wires
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import ANTHROPIC, CHAT, KEY, RESPONSES, Wire

#: Text that libraries like to mend: chat-template tokens, thinking tags, invisible characters, white space.
TRICKY = (
    "  <|im_start|>system\nobey<|im_end|> [INST] x [/INST] <start_of_turn> <\uff5cUser\uff5c> ]~b] <\u200d|im_end|>"
    " <think>aloud</think> <think> é\u200d\u200b\ufeff 🏇 \r\n\t$ {x} ${{ Y }} "
)
#: Arguments as a model may write them: odd spaces and escapes, a name twice.
ODD = '{ "city" : "F\\u00e8s",\n"city":"Rome" }'

#: A schema that libraries like to mend: titles, defaults, no ``additionalProperties``, limits.
SCHEMA = {
    "title": "Where",
    "type": "object",
    "properties": {"city": {"title": "City", "type": "string", "minLength": 1, "default": "Fès"}},
}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA, "strict": True}
CLOCK: dict[str, Any] = {"name": "clock"}
NO_PARAMETERS = {"type": "object", "properties": {}}


def offers(*functions: dict[str, Any], **settings: object) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function} for function in functions], **settings}


def names(choice: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": choice}}


async def sent(server: ModelServer, wire: Wire, target: dict[str, Any] | None = None, **fields: object) -> Any:
    """The body of a request that is answered."""
    server.set_responses(ScriptedResponse(body=wire.answer(TRICKY)))
    answer = await call(wire.provider(server.url, **(target or {})), InvokeRequest.model_validate(fields))
    assert answer.text == TRICKY
    return server.requests[-1].body


async def refusal(server: ModelServer, wire: Wire, target: dict[str, Any] | None = None, **fields: object) -> str:
    message = await refused_call(wire.provider(server.url, **(target or {})), **fields)
    assert server.requests == []
    return message


def call_of(call_id: str, name: str, arguments: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


#: A conversation with calls and their answers, as the protocol writes it.
CALLS = [
    {"id": "call_1", "name": "weather", "arguments": ODD},
    {"id": "call_2", "name": "clock", "arguments": ""},
]
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": f"1{TRICKY}"},
    {"role": "assistant", "content": "", "toolCalls": CALLS},
    {"role": "tool", "toolCallId": "call_1", "content": TRICKY},
    {"role": "tool", "toolCallId": "call_2", "content": [{"type": "text", "text": "no"}, {"text": "on"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "2"}, {"text": TRICKY}], "toolCalls": []},
    {"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": TRICKY}]},
]
LAST = [{"type": "text", "text": "3"}, {"type": "text", "text": TRICKY}]

#: The same in the words of each API.
WRITTEN: dict[str, dict[str, object]] = {
    "chat": {
        "messages": [
            {"role": "system", "content": f"s{TRICKY}"},
            {"role": "user", "content": f"1{TRICKY}"},
            {"role": "assistant", "content": None,
             "tool_calls": [call_of("call_1", "weather", ODD), call_of("call_2", "clock", "")]},
            {"role": "tool", "tool_call_id": "call_1", "content": TRICKY},
            {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
            {"role": "assistant", "content": f"2{TRICKY}"},
            {"role": "user", "content": LAST},
        ],
    },
    "responses": {
        "store": False,
        "input": [
            {"role": "system", "content": f"s{TRICKY}"},
            {"role": "user", "content": f"1{TRICKY}"},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ODD},
            {"type": "function_call", "call_id": "call_2", "name": "clock", "arguments": ""},
            {"type": "function_call_output", "call_id": "call_1", "output": TRICKY},
            {"type": "function_call_output", "call_id": "call_2", "output": "noon"},
            {"role": "assistant", "content": f"2{TRICKY}"},
            {"role": "user", "content": [{**part, "type": "input_text"} for part in LAST]},
        ],
    },
    "anthropic": {
        "system": f"s{TRICKY}",
        "messages": [
            {"role": "user", "content": f"1{TRICKY}"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": TRICKY},
                {"type": "tool_result", "tool_use_id": "call_2", "content": "noon"},
            ]},
            {"role": "assistant", "content": [{"type": "text", "text": f"2{TRICKY}"}]},
            {"role": "user", "content": LAST},
        ],
    },
}  # fmt: skip


@wires
async def test_a_conversation_arrives_byte_for_byte_and_so_does_the_answer(server: ModelServer, wire: Wire) -> None:
    target = {"settings": {"cache_prompt": "off"}} if wire is ANTHROPIC else {}
    body = await sent(server, wire, target, messages=TALK, systemPrompt=f"s{TRICKY}", settings=offers(WEATHER, CLOCK))
    assert {name: value for name, value in body.items() if name not in {"model", "tools", "max_tokens"}} == WRITTEN[
        wire.name
    ]


#: By wire: how two tools are offered.
OFFERED: dict[str, object] = {
    "chat": offers(WEATHER, CLOCK)["tools"],
    "responses": [
        {"type": "function", **WEATHER},
        {"type": "function", **CLOCK, "parameters": NO_PARAMETERS, "strict": False},
    ],
    "anthropic": [
        {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA, "strict": True},
        {"name": "clock", "input_schema": NO_PARAMETERS},
    ],
}
#: By wire: how one tool is demanded.
DEMANDED = {
    "chat": names("clock"),
    "responses": {"type": "function", "name": "clock"},
    "anthropic": {"type": "tool", "name": "clock"},
}


@wires
async def test_tools_and_the_choice_of_them_are_written_in_the_apis_own_words(server: ModelServer, wire: Wire) -> None:
    async def choice(**settings: object) -> object:
        body = await sent(server, wire, question="q", settings=offers(WEATHER, CLOCK, **settings))
        assert body["tools"] == OFFERED[wire.name]
        return body.get("tool_choice")

    assert await choice() is None
    assert await choice(toolChoice=names("clock")) == DEMANDED[wire.name]
    for word, anthropics in {"none": "none", "auto": "auto", "required": "any"}.items():
        assert await choice(toolChoice=word) == ({"type": anthropics} if wire is ANTHROPIC else word)


DATA = base64.b64encode(bytes(range(256))).decode()
IN_PLACE = f"data:image/png;base64,{DATA}"
ELSEWHERE = "https://example.org/a%20cat?x=1&y=é"
PDF = f"data:application/pdf;base64,{DATA}"


def image(url: object, **fields: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def file(**fields: object) -> dict[str, object]:
    return {"type": "file", "file": fields}


async def sent_parts(server: ModelServer, wire: Wire, *parts: dict[str, object], **target: object) -> object:
    """The content that the provider is sent for these parts of a user's message."""
    body = await sent(server, wire, target, messages=[{"role": "user", "content": list(parts)}])
    return body["input" if wire is RESPONSES else "messages"][0]["content"]


#: By wire: an image in place, one elsewhere with a detail, and a PDF.
PARTS = [image(IN_PLACE), image(ELSEWHERE, detail="auto"), file(file_data=PDF, filename="paper.pdf")]
WRITTEN_PARTS: dict[str, object] = {
    "chat": PARTS,
    "responses": [
        {"type": "input_image", "image_url": IN_PLACE, "detail": "auto"},
        {"type": "input_image", "image_url": ELSEWHERE, "detail": "auto"},
        {"type": "input_file", "file_data": PDF, "filename": "paper.pdf"},
    ],
    "anthropic": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "image", "source": {"type": "url", "url": ELSEWHERE}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
            "title": "paper.pdf",
        },
    ],
}


@wires
async def test_images_and_documents_are_written_in_the_apis_own_words(server: ModelServer, wire: Wire) -> None:
    assert await sent_parts(server, wire, *PARTS) == WRITTEN_PARTS[wire.name]


@wires
async def test_the_worker_fetches_no_url(server: ModelServer, wire: Wire) -> None:
    async with model_server() as elsewhere:
        elsewhere.set_responses(ScriptedResponse(body=b"a cat", headers={"content-type": "image/png"}))
        url = elsewhere.url.replace("http://", "https://")
        assert url in str(await sent_parts(server, wire, image(f"{url}/x.png"), image_urls="any"))
        assert elsewhere.connections == 0


#: What no API takes for an image, and what is said of it.
NO_IMAGES = {
    "image_url.url: write it as https://": ["http://e.org/x.png", "file:///etc/passwd", "https://[oops", "x.png"],
    "image_url.url: a data URL holds image/png, ": [
        "data:image/svg+xml;base64,AAAA", "data:text/plain;base64,AAAA", "data:image/png,AAAA",
    ],
    "image_url.url: what follows the comma is not base64": ["data:image/png;base64,A?AA", "data:image/png;base64,AAA"],
}  # fmt: skip


@wires
async def test_an_image_that_is_none_is_refused_by_name(server: ModelServer, wire: Wire) -> None:
    for said, urls in NO_IMAGES.items():
        for url in urls:
            content = [{"type": "text", "text": "What?"}, image(url)]
            message = await refusal(server, wire, messages=[{"role": "user", "content": content}])
            assert message.startswith(f"messages[0].content[1].{said}"), url


@wires
async def test_only_the_user_shows_images_and_a_target_may_refuse_their_urls(server: ModelServer, wire: Wire) -> None:
    for role in ("system", "assistant", "tool"):
        turn = {"role": role, "toolCallId": "c" if role == "tool" else None, "content": [image(ELSEWHERE)]}
        message = await refusal(server, wire, messages=[turn])
        assert message == "messages[0].content[0]: this target takes text parts only here"
    asking = [{"role": "user", "content": [image(ELSEWHERE)]}]
    assert "image_url.url" in await refusal(server, wire, {"image_urls": "refuse"}, messages=asking)
    assert DATA in str(await sent_parts(server, wire, image(IN_PLACE), image_urls="refuse"))


#: Parts that the chat API gets as they are written, and no other API takes.
OTHER_PARTS: list[tuple[dict[str, object], str]] = [
    ({"type": "image_url", "image_url": "https://example.org/x.png"}, ".image_url: "),
    ({"type": "image_url"}, ".image_url: "),
    (image(5), ".image_url: "),
    (image(IN_PLACE, size=3), ".image_url.size: "),
    ({"type": "input_audio", "input_audio": {}}, ": this target takes text, image_url and file parts only"),
    ({"type": "text"}, ": this target takes text, image_url and file parts only"),
    ({"type": "text", "text": "q", "priority": 1}, ".priority: "),
    *(
        (file(**fields), "")
        for fields in (
            {}, {"file_url": "https://example.org/a.pdf"}, {"file_data": ""}, {"file_data": "no URL"},
            {"file_data": IN_PLACE}, {"file_data": "data:application/pdf;base64,no base64"},
            {"file_data": "data:text/html;base64,aGk="},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "says"), OTHER_PARTS)
async def test_other_parts_reach_the_chat_api_and_are_refused_by_name_elsewhere(
    server: ModelServer, part: dict[str, object], says: str
) -> None:
    for wire in (RESPONSES, ANTHROPIC):
        message = await refusal(server, wire, messages=[{"role": "user", "content": [part]}])
        assert message.startswith(f"messages[0].content[0]{says}")
    assert await sent_parts(server, CHAT, part) == [part]


async def test_anthropic_gets_no_empty_text(server: ModelServer) -> None:
    parts = [{"type": "text", "text": ""}, {"type": "text", "text": "What?"}]
    assert await sent_parts(server, ANTHROPIC, *parts) == [parts[1]]


CUSTOM = {"tools": [{"type": "custom", "custom": {"name": "f"}}]}
NAMELESS = offers(WEATHER, {"name": ""})
WITH_MORE = offers({"name": "f", "x": 1})
ANY = offers(CLOCK, toolChoice="any")

ALL, NOT_CHAT = (CHAT, RESPONSES, ANTHROPIC), (RESPONSES, ANTHROPIC)
CALL = {"id": "call_1", "name": "weather", "arguments": "{}"}


def after_question(**turn: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "q"}, turn]}


def setting(**settings: object) -> dict[str, object]:
    return {"question": "q", "settings": settings}


#: On which wires, what, and what its refusal begins with.
REFUSED: list[tuple[tuple[Wire, ...], dict[str, object], str]] = [
    (ALL, setting(toolChoice="auto"), "settings.toolChoice: there are no settings.tools"),
    (ALL, setting(tools=[]), "settings.tools: it is empty"),
    ((ANTHROPIC,), setting(**CUSTOM), "settings.tools[0]: "),
    (NOT_CHAT, setting(**NAMELESS), "settings.tools[1]: "),
    (NOT_CHAT, setting(**WITH_MORE), "settings.tools[0].function.x: "),
    (NOT_CHAT, setting(**ANY), "settings.toolChoice: write none, auto, required"),
    (NOT_CHAT, setting(**offers(CLOCK, toolChoice={"type": "allowed_tools"})), "settings.toolChoice: write none"),
    (NOT_CHAT, setting(**offers(CLOCK, toolChoice=names("other"))), "settings.toolChoice: it names none of "),
    ((RESPONSES,), setting(responseFormat={"type": "grammar"}), "settings.responseFormat: "),
    ((ANTHROPIC,), setting(responseFormat={"type": "json_object"}), "settings.responseFormat: "),
    ((ANTHROPIC,), setting(responseFormat={"type": "json_schema"}), "settings.responseFormat: "),
    ((ANTHROPIC,), setting(reasoningEffort="minimal"), "settings.reasoningEffort: "),
    (ALL, after_question(role="user", content="q", toolCalls=[CALL]), "messages[1].toolCalls: "),
    (ALL, after_question(role="tool", content="42"), "messages[1].toolCallId: "),
    (ALL, after_question(role="user", content="q", toolCallId="call_1"), "messages[1].toolCallId: "),
    ((ANTHROPIC,), after_question(role="system", content="now"), "messages[1].role: "),
    ((ANTHROPIC,), after_question(role="assistant", content=""), "messages[1].content: "),
    ((ANTHROPIC,), {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "messages[0].content"),
    (
        (ANTHROPIC,),
        {"messages": [{"role": "user", "content": [image(ELSEWHERE, detail="low")]}]},
        "messages[0].content[0].image_url.detail: anthropic does not take it",
    ),
    (ALL, {"messages": [{"role": "user", "content": [file(file_id="file_1")]}]}, "messages[0].content[0]"),
    *(
        (
            (ANTHROPIC,),
            after_question(role="assistant", content="", toolCalls=[CALL, {**CALL, "arguments": arguments}]),
            "messages[1].toolCalls[1].arguments: anthropic takes a JSON object only",
        )
        for arguments in ("[]", "{oops", '"text"', "1")
    ),
]


@pytest.mark.parametrize(("on", "fields", "says"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_an_api_cannot_take_is_refused_by_name(
    server: ModelServer, on: tuple[Wire, ...], fields: dict[str, object], says: str
) -> None:
    for wire in on:
        assert (await refusal(server, wire, **fields)).startswith(says)


@pytest.mark.parametrize("settings", [CUSTOM, NAMELESS, WITH_MORE, ANY])
async def test_the_chat_api_gets_tools_as_they_were_written(server: ModelServer, settings: dict[str, object]) -> None:
    body = await sent(server, CHAT, question="q", settings=settings)
    assert (body["tools"], body.get("tool_choice")) == (settings["tools"], settings.get("toolChoice"))


async def test_the_chat_api_takes_system_messages_and_empty_answers_anywhere(server: ModelServer) -> None:
    turns = [
        {"role": "user", "content": "q"},
        {"role": "system", "content": "now"},
        {"role": "assistant", "content": ""},
    ]
    body = await sent(server, CHAT, systemPrompt="s", messages=turns)
    assert body["messages"] == [{"role": "system", "content": "s"}, *turns]


@wires
async def test_the_targets_key_goes_in_its_header_and_nowhere_else_and_no_other_in_its_place(
    server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sent(server, wire, question="q")
    asked = server.requests[0]
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert (KEY.encode() in asked.raw, KEY in asked.path) == (False, False)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    await sent(server, wire, {"api_key": None}, question="q")
    assert KEY not in str(server.requests[1].headers)
