"""Tools over the real wire: what is offered, asked for and answered, all in the words of whoever wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.apis.streams import STREAMS
from quintain.apis.translation import Json
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import InvokeRequest, OutputMessage, ToolCall, ToolCallChunk
from quintain.errors import BadRequest
from quintain_worker.providers.provider import Billing, Delta, Provider, ProviderAnswer, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import chat_call_events, event
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire

#: A schema that libraries like to mend: titles, defaults, no ``additionalProperties``, limits.
SCHEMA = {
    "title": "Where",
    "type": "object",
    "properties": {"city": {"title": "City", "type": "string", "minLength": 1, "default": "Fès"}},
}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA, "strict": True}
CLOCK: dict[str, Any] = {"name": "clock"}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": CLOCK}]
NO_PARAMETERS = {"type": "object", "properties": {}}

#: Arguments as a model may write them: odd spaces and escapes, a name twice.
ODD = '{ "city" : "F\\u00e8s",\n"city":"Rome" }'

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


async def answer_of(provider: Provider, **fields: object) -> ProviderAnswer:
    try:
        return await provider.answer(InvokeRequest.model_validate(fields), timeout_seconds=10)
    finally:
        await provider.close()


async def sent(server: ModelServer, wire: Wire, **fields: object) -> dict[str, Any]:
    """The body of a request that was answered."""
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    await answer_of(wire.provider(server.url), **fields)
    return server.requests[-1].body


async def refusal_message(server: ModelServer, wire: Wire, **fields: object) -> str:
    """The sentence of a request that was refused before anything was sent."""
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(wire.provider(server.url), **fields)
    assert isinstance(caught.value.fault, BadRequest)
    assert (caught.value.billing, caught.value.retryable, server.requests) == (Billing.UNBILLED, False, [])
    return caught.value.fault.message


def names(choice: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": choice}}


async def test_openai_is_offered_the_tools_as_the_request_wrote_them(server: ModelServer) -> None:
    body = await sent(server, CHAT, question="q", settings={"tools": TOOLS, "toolChoice": names("clock")})
    assert (body["tools"], body["tool_choice"]) == (TOOLS, names("clock"))


async def test_the_responses_api_is_offered_the_tools_in_its_own_words(server: ModelServer) -> None:
    body = await sent(server, RESPONSES, question="q", settings={"tools": TOOLS})
    assert body["tools"] == [
        {"type": "function", **WEATHER},
        {"type": "function", **CLOCK, "parameters": NO_PARAMETERS, "strict": False},
    ]
    assert "tool_choice" not in body


async def test_anthropic_is_offered_the_tools_in_its_own_words(server: ModelServer) -> None:
    body = await sent(server, ANTHROPIC, question="q", settings={"tools": TOOLS})
    assert body["tools"] == [
        {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA, "strict": True},
        {"name": "clock", "input_schema": NO_PARAMETERS},
    ]
    assert "tool_choice" not in body


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
@wires
async def test_a_choice_is_made_in_the_providers_own_words(server: ModelServer, wire: Wire, choice: str) -> None:
    body = await sent(server, wire, question="q", settings={"tools": TOOLS, "toolChoice": choice})
    word = "any" if choice == "required" else choice
    assert body["tool_choice"] == ({"type": word} if wire is ANTHROPIC else choice)


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (CHAT, names("weather")),
        (RESPONSES, {"type": "function", "name": "weather"}),
        (ANTHROPIC, {"type": "tool", "name": "weather"}),
    ],
    ids=lambda it: it.name if isinstance(it, Wire) else "",
)
async def test_one_tool_can_be_demanded(server: ModelServer, wire: Wire, said: object) -> None:
    body = await sent(server, wire, question="q", settings={"tools": TOOLS, "toolChoice": names("weather")})
    assert body["tool_choice"] == said
    assert len(body["tools"]) == 2


@wires
async def test_the_calls_of_an_answer_come_back_with_the_models_own_arguments(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.calls([("call_1", "weather", ODD), ("call_2", "clock", "{}")])))
    answer = await answer_of(wire.provider(server.url), question="q", settings={"tools": TOOLS})
    # Anthropic's API answers with an object, not with the model's text.
    arguments = '{"city":"Rome"}' if wire is ANTHROPIC else ODD
    calls = [
        ToolCall(id="call_1", name="weather", arguments=arguments),
        ToolCall(id="call_2", name="clock", arguments="{}"),
    ]
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")
    assert answer.output == [OutputMessage(content="", tool_calls=calls)]


async def test_a_call_without_an_id_has_one(server: ModelServer) -> None:
    calls = [("", "clock", "{}"), ("", "clock", "{}")]
    events = chat_call_events([(call_id, name, [arguments]) for call_id, name, arguments in calls])
    server.set_responses(ScriptedResponse(body=CHAT.calls(calls)), StreamedResponse(events=events))
    whole = await answer_of(CHAT.provider(server.url), question="q", settings={"tools": TOOLS})
    heard: list[Delta] = []
    provider, request = CHAT.provider(server.url), InvokeRequest(question="q")
    streamed = await provider.answer(request, timeout_seconds=10, on_text=heard.append)
    await provider.close()
    assert whole.output is not None
    ids = [call.id for call in whole.output[0].tool_calls or ()]
    assert len({*ids, ""}) == 3
    assert streamed.output == whole.output
    assert [piece.id for piece in heard if isinstance(piece, ToolCallChunk) and piece.id is not None] == ids


@wires
async def test_an_answer_without_calls_is_its_text_alone(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    answer = await answer_of(wire.provider(server.url), question="q", settings={"tools": TOOLS})
    assert (answer.text, answer.output, answer.finish_reason) == ("Fine.", None, "stop")


async def test_text_beside_calls_is_kept(server: ModelServer) -> None:
    body = ANTHROPIC.calls([("call_1", "clock", "{}")])
    body["content"] = [{"type": "text", "text": "Let me see."}, *body["content"]]  # type: ignore[misc]
    server.set_responses(ScriptedResponse(body=body))
    answer = await answer_of(ANTHROPIC.provider(server.url), question="q", settings={"tools": TOOLS})
    assert answer.text == "Let me see."
    assert answer.output is not None
    assert [message.content for message in answer.output] == ["Let me see."]


#: What vendors ran for an answer, in their own words.
SEARCHED = [
    {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {"query": "tides"}},
    {"type": "web_search_tool_result", "tool_use_id": "s_1", "content": [{"url": "https://tides.example"}]},
    {"type": "mcp_tool_use", "id": "m_1", "name": "clock", "server_name": "time", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "m_1", "is_error": True, "content": [{"type": "text", "text": "no"}]},
]
RAN = [
    {"type": "web_search_call", "id": "s_1", "status": "completed", "action": {"type": "search", "query": "tides"}},
    {"type": "mcp_call", "id": "m_1", "name": "clock", "server_label": "time", "arguments": "{}", "error": "no"},
    {"type": "file_search_call", "id": "f_1", "queries": ["tides"], "results": [{"text": "12:40"}]},
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("wire", "field", "items", "ran"),
    [
        (
            ANTHROPIC,
            "content",
            SEARCHED,
            [
                ("web_search", "s_1", {"query": "tides"}, [{"url": "https://tides.example"}], None),
                ("clock", "m_1", {}, [{"type": "text", "text": "no"}], "_OTHER"),
            ],
        ),
        (
            RESPONSES,
            "output",
            RAN,
            [
                ("web_search", "s_1", {"action": {"type": "search", "query": "tides"}}, None, None),
                ("clock", "m_1", {}, "no", "_OTHER"),
                ("file_search", "f_1", {"queries": ["tides"]}, [{"text": "12:40"}], None),
            ],
        ),
    ],
    ids=["anthropic", "responses"],
)
async def test_what_a_vendor_ran_for_an_answer_is_its_steps(
    server: ModelServer, wire: Wire, field: str, items: list[Json], ran: list[object], streamed: bool
) -> None:
    body = wire.answer("At 12:40.")
    body[field] = [*items, *body[field]]  # type: ignore[misc]
    api: ApiName = "messages" if wire is ANTHROPIC else "responses"
    events = [event(one, str(one["type"])) for one in STREAMS[api]().rest_of(body)]
    server.set_responses(StreamedResponse(events=events) if streamed else ScriptedResponse(body=body))
    provider, request = wire.provider(server.url), InvokeRequest(question="q")
    answer = await provider.answer(request, timeout_seconds=10, on_text=(lambda _: None) if streamed else None)
    await provider.close()
    assert answer.text == "At 12:40."
    assert {step.operation for step in answer.steps} == {"execute_tool"}
    assert [
        (step.tool, step.tool_call_id, step.arguments, step.result, step.error_type) for step in answer.steps
    ] == ran


async def test_arguments_that_are_no_json_come_back_as_they_are(server: ModelServer) -> None:
    server.set_responses(
        ScriptedResponse(body=CHAT.calls([("call_1", "weather", "{city: Rome"), ("call_2", "clock", "")]))
    )
    answer = await answer_of(CHAT.provider(server.url), question="q", settings={"tools": TOOLS})
    assert answer.output is not None
    assert [call.arguments for call in answer.output[0].tool_calls or []] == ["{city: Rome", ""]


#: A conversation with calls and their answers, as the wire writes it.
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Rome?"},
    {
        "role": "assistant",
        "content": "",
        "toolCalls": [
            {"id": "call_1", "name": "weather", "arguments": ODD},
            {"id": "call_2", "name": "clock", "arguments": ""},
        ],
    },
    {"role": "tool", "toolCallId": "call_1", "content": " <b>5°</b>\n"},
    {"role": "tool", "toolCallId": "call_2", "content": [{"type": "text", "text": "no"}, {"text": "on"}]},
    {"role": "assistant", "content": "Cold.", "toolCalls": []},
    {"role": "user", "content": "Thanks."},
]


async def test_calls_and_their_answers_go_to_openai_word_for_word(server: ModelServer) -> None:
    body = await sent(server, CHAT, messages=TALK, settings={"tools": TOOLS})

    def call(call_id: str, name: str, arguments: str) -> dict[str, object]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    calls = [call("call_1", "weather", ODD), call("call_2", "clock", "")]
    assert body["messages"] == [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": " <b>5°</b>\n"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "Thanks."},
    ]


async def test_calls_and_their_answers_go_to_the_responses_api_word_for_word(server: ModelServer) -> None:
    body = await sent(server, RESPONSES, messages=TALK, settings={"tools": TOOLS})
    assert body["input"] == [
        {"role": "user", "content": "Rome?"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ODD},
        {"type": "function_call", "call_id": "call_2", "name": "clock", "arguments": ""},
        {"type": "function_call_output", "call_id": "call_1", "output": " <b>5°</b>\n"},
        {"type": "function_call_output", "call_id": "call_2", "output": "noon"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "Thanks."},
    ]


async def test_calls_go_to_anthropic_as_objects_and_their_answers_in_one_message(server: ModelServer) -> None:
    body = await sent(server, ANTHROPIC, messages=TALK, settings={"tools": TOOLS})

    def returned(call_id: str, text: str) -> dict[str, object]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": text}

    assert body["messages"][1:4] == [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
            ],
        },
        {"role": "user", "content": [returned("call_1", " <b>5°</b>\n"), returned("call_2", "noon")]},
        {"role": "assistant", "content": [{"type": "text", "text": "Cold."}]},
    ]


def offers(*functions: dict[str, Any], **settings: object) -> dict[str, object]:
    return {"tools": [{"type": "function", "function": function} for function in functions], **settings}


NAMELESS = offers(WEATHER, {"name": ""})
WITH_MORE = offers({"name": "f", "x": 1})
CUSTOM = {"tools": [{"type": "custom", "custom": {"name": "f"}}]}
ALL_WIRES = (CHAT, RESPONSES, ANTHROPIC)


@pytest.mark.parametrize(
    ("on", "settings", "field"),
    [
        (ALL_WIRES, {"toolChoice": "auto"}, "settings.toolChoice: there are no settings.tools"),
        (ALL_WIRES, {"tools": []}, "settings.tools: it is empty"),
        ((ANTHROPIC,), CUSTOM, "settings.tools[0]: "),
        ((RESPONSES, ANTHROPIC), NAMELESS, "settings.tools[1]: "),
        ((RESPONSES, ANTHROPIC), WITH_MORE, "settings.tools[0].function.x: "),
        ((RESPONSES, ANTHROPIC), offers(CLOCK, toolChoice="any"), "settings.toolChoice: write none, auto, required"),
        (
            (RESPONSES, ANTHROPIC),
            offers(CLOCK, toolChoice={"type": "allowed_tools"}),
            "settings.toolChoice: write none",
        ),
        ((RESPONSES, ANTHROPIC), offers(CLOCK, toolChoice=names("other")), "settings.toolChoice: it names none of "),
    ],
)
async def test_tools_that_no_provider_takes_are_refused_by_name(
    server: ModelServer, on: tuple[Wire, ...], settings: dict[str, object], field: str
) -> None:
    for wire in on:
        assert (await refusal_message(server, wire, question="q", settings=settings)).startswith(field)


@pytest.mark.parametrize("settings", [CUSTOM, NAMELESS, WITH_MORE, offers(CLOCK, toolChoice="any")])
async def test_the_chat_api_gets_tools_as_they_were_written(server: ModelServer, settings: dict[str, object]) -> None:
    body = await sent(server, CHAT, question="q", settings=settings)
    assert (body["tools"], body.get("tool_choice")) == (settings["tools"], settings.get("toolChoice"))


CALL = {"id": "call_1", "name": "weather", "arguments": "{}"}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": "q", "toolCalls": [CALL]}, "messages[1].toolCalls: "),
        ({"role": "tool", "content": "42"}, "messages[1].toolCallId: "),
        ({"role": "user", "content": "q", "toolCallId": "call_1"}, "messages[1].toolCallId: "),
    ],
)
@wires
async def test_a_call_in_the_wrong_place_is_refused_by_name(
    server: ModelServer, wire: Wire, message: dict[str, object], field: str
) -> None:
    talk = [{"role": "user", "content": "q"}, message]
    assert (await refusal_message(server, wire, messages=talk)).startswith(field)


@pytest.mark.parametrize("arguments", ["[]", "{oops", '"text"', "1"])
async def test_anthropic_takes_arguments_that_are_an_object_only(server: ModelServer, arguments: str) -> None:
    calls = [CALL, {**CALL, "arguments": arguments}]
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "toolCalls": calls}]
    message = await refusal_message(server, ANTHROPIC, messages=talk)
    assert message == "messages[1].toolCalls[1].arguments: anthropic takes a JSON object only"
    body = await sent(server, CHAT, messages=talk)
    assert body["messages"][1]["tool_calls"][1]["function"]["arguments"] == arguments
