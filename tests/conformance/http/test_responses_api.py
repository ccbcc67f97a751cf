"""OpenAI's Responses API over a real socket: its official client, whole and streamed, and what no client sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from support.gateway_client import GatewayClient
from support.model_fleet import OVER_MEMORY, ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_streams import chat_reasoning_events
from support.model_wires import CHAT, chat_answer, chat_calls
from support.official_clients import openai_client

pytestmark = [pytest.mark.asyncio(loop_scope="module"), OVER_MEMORY]

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: ModelFleet, gateway_client: GatewayClient) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of the same session."""
    async with openai_client(fleet.url, gateway_client.token) as (client, _):
        yield client


async def test_a_response_has_openais_shape(client: openai.AsyncOpenAI) -> None:
    raw = await client.responses.with_raw_response.create(model="fixed", input="Hello", instructions="Be brief.")
    answer = raw.parse()
    assert (answer.output_text, answer.status, answer.model) == ("A fixed answer", "completed", "mock")
    assert answer.id.startswith("resp_")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (10, 5, 15)
    assert answer.error is None
    assert raw.headers["x-quintain-call-count"] == "1"


async def test_what_a_client_sends_reaches_the_provider(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    items: Any = [
        {"role": "developer", "content": "In French."},
        {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, _image(image)]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "Sun"}]},
    ]
    fleet.provider.set_responses(ScriptedResponse(body=chat_answer("It rains")))
    answer = await client.responses.create(
        model="model",
        instructions="Be brief.",
        input=items,
        temperature=0.25,
        top_p=0.5,
        max_output_tokens=77,
        reasoning={"effort": "high"},
        text={
            "format": {"type": "json_schema", "name": "it", "schema": {"type": "object"}, "strict": True},
            "verbosity": "low",
        },
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        user="somebody",
        store=True,
    )
    assert answer.output_text == "It rains"
    said = fleet.provider.requests[-1].body
    got: Any = said["messages"]
    assert [(message["role"], message.get("content")) for message in got] == [
        ("system", "Be brief."),
        ("system", "In French."),
        (
            "user",
            [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": image, "detail": "low"}},
            ],
        ),
        ("assistant", "Let me see."),
        ("tool", "Rain"),
        ("tool", "Sun"),
    ]
    assert [call["id"] for call in got[3]["tool_calls"]] == ["c1", "c2"]
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    wanted = {
        "temperature": 0.25,
        "top_p": 0.5,
        "max_tokens": 77,
        "reasoning_effort": "high",
        "verbosity": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": {"type": "object"}, "strict": True},
        },
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert {name: said[name] for name in wanted} == wanted


def _image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, "detail": "low"}


async def test_an_output_can_be_sent_back_as_input(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    body: Any = chat_calls([("c1", "weather", '{"city": "Paris"}')])
    body["choices"][0]["message"]["reasoning_content"] = "Ask the weather service"
    fleet.provider.set_responses(ScriptedResponse(body=body), ScriptedResponse(body=chat_answer("Rain")))
    answer = await client.responses.create(model="model", input="The weather?", tools=[WEATHER])
    kinds = [item.type for item in answer.output]
    assert kinds == ["reasoning", "function_call"]
    items: Any = [{"role": "user", "content": "The weather?"}, *(item.to_dict() for item in answer.output)]
    items.append({"type": "function_call_output", "call_id": "c1", "output": "Rain"})
    assert (await client.responses.create(model="model", input=items, tools=[WEATHER])).output_text == "Rain"
    said: Any = fleet.provider.requests[-1].body["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "tool"]
    assert said[1]["tool_calls"][0]["id"] == "c1"


@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_was_cut_says_so(
    fleet: ModelFleet, client: openai.AsyncOpenAI, reason: str, told: str
) -> None:
    body: Any = chat_answer("Half")
    body["choices"][0]["finish_reason"] = reason
    fleet.provider.set_responses(ScriptedResponse(body=body))
    answer = await client.responses.create(model="model", input="x")
    assert (answer.status, answer.output_text) == ("incomplete", "Half")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == told


# Streams.


async def test_a_stream_says_piece_by_piece_what_the_whole_says(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="words", input="x") as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text == "one two three four five"
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == sorted(
        {event.sequence_number for event in events if hasattr(event, "sequence_number")}
    )
    assert (events[0].type, events[-1].type, whole.status) == ("response.created", "response.completed", "completed")
    assert whole.usage is not None


async def test_calls_of_tools_are_streamed(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    calls = [("c1", "weather", ['{"city": ', '"Paris"}']), ("c2", "weather", ["{}"])]
    fleet.provider.set_responses(StreamedResponse(events=CHAT.call_events(calls)))
    async with client.responses.stream(model="model", input="x", tools=[WEATHER]) as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_response()
    called = [(item.call_id, item.name, item.arguments) for item in whole.output if item.type == "function_call"]
    assert called == [("c1", "weather", '{"city": "Paris"}'), ("c2", "weather", "{}")]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert done == ['{"city": "Paris"}', "{}"]


async def test_a_stream_that_fails_ends_with_an_error(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    fleet.provider.set_responses(StreamedResponse(events=CHAT.events(["one ", "two"]), event_count=3, then="close"))
    text = ""
    with pytest.raises(openai.APIError) as failed:
        async for event in await client.responses.create(
            model="model", input="x", stream=True, extra_headers={"x-quintain-deadline": await _soon(client)}
        ):
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert text.startswith("one ")
    assert failed.value.code in {"provider_error", "timeout"}


async def _soon(client: openai.AsyncOpenAI) -> str:
    info = await client.get("/../info", cast_to=object)
    return str(dict(info)["now"] + 1500)  # type: ignore[call-overload]


# Refusals.


async def test_what_would_need_a_store_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    stored: Any = [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"background": True},
    ]
    for fields in stored:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="echo", input="x", **fields)
        assert refused.value.param == next(iter(fields))
    items: Any = [
        ({"type": "item_reference", "id": "msg_1"}, "input.0.type"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}, "input.0.content.0.file_id"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}, "input.0.content.0.file_id"),
    ]
    for item, field in items:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="echo", input=[item])
        assert refused.value.param == field


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "auto"},
        {"max_tool_calls": 3},
        {"reasoning": {"context": "auto"}},
        {"include": ["file_search_call.results"]},
        {"seed_": 1},
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name_unless_told_otherwise(
    fleet: ModelFleet, client: openai.AsyncOpenAI, gateway_client: GatewayClient, fields: Any
) -> None:
    before = await gateway_client.read_call_count()
    [name] = fields
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="echo", input="x", extra_body=fields)
    assert (refused.value.param or "").startswith(name)
    assert await gateway_client.read_call_count() == before
    async with openai_client(fleet.url, await fleet.token(unsupported="ignore")) as (lenient, _):
        raw = await lenient.responses.with_raw_response.create(model="echo", input="x", extra_body=fields)
    assert raw.headers["x-quintain-ignored"].startswith(name)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "model"),
    ({"model": "echo"}, "input"),
    ({"model": "echo", "input": ""}, "input"),
    ({"model": "echo", "input": []}, "input"),
    ({"model": "echo", "input": 5}, "input"),
    ({"model": "echo", "input": [5]}, "input"),
    ({"model": "echo", "input": [{"role": "king", "content": "x"}]}, "input.0.role"),
    ({"model": "echo", "input": [{"role": "user"}]}, "input.0.content"),
    ({"model": "echo", "input": [{"role": "user", "content": [{"type": "audio"}]}]}, "input.0.content.0.type"),
    ({"model": "echo", "input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
    ({"model": "echo", "input": [{"type": "function_call", "name": "x"}]}, "input.0.call_id"),
    ({"model": "echo", "input": [{"type": "function_call_output", "call_id": "", "output": "x"}]}, "input.0.call_id"),
    ({"model": "echo", "input": [{"type": "web_search_call"}]}, "input.0.type"),
    ({"model": "echo", "input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ({"model": "echo", "input": "x", "top_p": 2}, "top_p"),
    ({"model": "echo", "input": "x", "tools": [{"type": "web_search"}]}, "tools.0"),
    ({"model": "echo", "input": "x", "tools": [{"type": "function", "name": ""}]}, "tools.0.name"),
    ({"model": "echo", "input": "x", "tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools.0.param"),
    ({"model": "echo", "input": "x", "text": {"format": "json"}}, "text.format"),
    ({"model": "echo", "input": "x", "stream": "yes"}, "stream"),
]


async def test_a_bad_request_is_400_names_its_field_and_costs_nothing(gateway_client: GatewayClient) -> None:
    for body, field in BAD:
        status, answer = await gateway_client.post("/v1/responses", body)
        assert (status, answer["error"]["code"]) == (400, "bad_request"), f"{body} is answered {answer}"
        assert (answer["error"]["param"] or "").startswith(field), f"{body} is answered {answer}"
    assert await gateway_client.read_call_count() == 0


async def test_reasoning_is_streamed_before_the_text(fleet: ModelFleet, client: openai.AsyncOpenAI) -> None:
    fleet.provider.set_responses(StreamedResponse(events=chat_reasoning_events(["H", "m."], ["Ye", "s"])))
    async with client.responses.stream(model="model", input="x") as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_summary_text.delta") < kinds.index("response.output_text.delta")
    reasoning = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(reasoning) == "Hm."
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    [part] = answer.output[0].summary  # type: ignore[union-attr]
    assert (part.text, answer.output_text) == ("Hm.", "Yes")
