"""OpenAI's Responses API over a real socket: its official client, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_streams import chat_reasoning_events
from support.model_wires import CHAT, chat_answer, chat_calls
from support.official_clients import OfficialClients

pytestmark = pytest.mark.asyncio(loop_scope="module")

FUNCTION: Any = {
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
WEATHER: Any = {"type": "function", **FUNCTION}


async def test_a_response_has_openais_shape(clients: OfficialClients) -> None:
    raw = await clients.openai.responses.with_raw_response.create(
        model="fixed", input="Hello", instructions="Be brief."
    )
    answer = raw.parse()
    assert (answer.output_text, answer.status, answer.model) == ("A fixed answer", "completed", "mock")
    assert answer.id.startswith("resp_")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (10, 5, 15)
    assert (answer.error, raw.headers["x-quintain-call-count"]) == (None, "1")


IMAGE = "data:image/png;base64,iVBORw0KGgo="
ITEMS: Any = [
    {"role": "developer", "content": "In French."},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": IMAGE, "detail": "low"},
        ],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
    {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "Sun"}]},
]
SCHEMA: Any = {"name": "it", "schema": {"type": "object"}, "strict": True}


async def test_what_a_client_sends_reaches_a_chat_provider_in_its_own_words(
    fleet: ModelFleet, clients: OfficialClients
) -> None:
    fleet.provider.set_responses(ScriptedResponse(body=chat_answer("It rains")))
    alike: Any = {"temperature": 0.25, "top_p": 0.5, "parallel_tool_calls": False, "top_logprobs": 2}
    answer = await clients.openai.responses.create(
        model="model",
        instructions="Be brief.",
        input=ITEMS,
        max_output_tokens=77,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"},
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        user="somebody",
        store=True,
        **alike,
    )
    assert answer.output_text == "It rains"
    said = fleet.provider.requests[-1].body
    got: Any = said["messages"]
    shown = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
    ]
    assert [(message["role"], message.get("content")) for message in got] == [
        ("system", "Be brief."),
        ("system", "In French."),
        ("user", shown),
        ("assistant", "Let me see."),
        ("tool", "Rain"),
        ("tool", "Sun"),
    ]
    assert [call["id"] for call in got[3]["tool_calls"]] == ["c1", "c2"]
    wanted = alike | {
        "max_tokens": 77,
        "reasoning_effort": "high",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "logprobs": True,
    }
    assert {name: said[name] for name in wanted} == wanted


async def test_an_output_can_be_sent_back_as_input(fleet: ModelFleet, clients: OfficialClients) -> None:
    body: Any = chat_calls([("c1", "weather", '{"city": "Paris"}')])
    body["choices"][0]["message"]["reasoning_content"] = "Ask the weather service"
    fleet.provider.set_responses(ScriptedResponse(body=body), ScriptedResponse(body=chat_answer("Rain")))
    create = clients.openai.responses.create
    answer = await create(model="model", input="The weather?", tools=[WEATHER])
    assert [item.type for item in answer.output] == ["reasoning", "function_call"]
    items: Any = [{"role": "user", "content": "The weather?"}, *(item.to_dict() for item in answer.output)]
    items.append({"type": "function_call_output", "call_id": "c1", "output": "Rain"})
    assert (await create(model="model", input=items, tools=[WEATHER])).output_text == "Rain"
    said: Any = fleet.provider.requests[-1].body["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "tool"]
    assert said[1]["tool_calls"][0]["id"] == "c1"


@pytest.mark.parametrize(("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_was_cut_says_so(
    fleet: ModelFleet, clients: OfficialClients, reason: str, told: str
) -> None:
    body: Any = chat_answer("Half")
    body["choices"][0]["finish_reason"] = reason
    fleet.provider.set_responses(ScriptedResponse(body=body))
    answer = await clients.openai.responses.create(model="model", input="x")
    assert (answer.status, answer.output_text) == ("incomplete", "Half")
    assert answer.incomplete_details.reason == told


async def test_a_stream_says_piece_by_piece_what_the_whole_says_reasoning_first(
    fleet: ModelFleet, clients: OfficialClients
) -> None:
    fleet.provider.set_responses(StreamedResponse(events=chat_reasoning_events(["H", "m."], ["Ye", "s"])))
    async with clients.openai.responses.stream(model="model", input="x") as stream:
        events = [event async for event in stream]
        whole: Any = await stream.get_final_response()

    def heard(kind: str) -> str:
        return "".join(event.delta for event in events if event.type == f"response.{kind}.delta")

    kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_summary_text.delta") < kinds.index("response.output_text.delta")
    assert (kinds[0], kinds[-1], whole.status) == ("response.created", "response.completed", "completed")
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(set(numbers))
    assert (heard("reasoning_summary_text"), heard("output_text")) == ("Hm.", "Yes")
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert (whole.output[0].summary[0].text, whole.output_text, whole.usage is not None) == ("Hm.", "Yes", True)


async def test_calls_of_tools_are_streamed(fleet: ModelFleet, clients: OfficialClients) -> None:
    calls = [("c1", "weather", ['{"city": ', '"Paris"}']), ("c2", "weather", ["{}"])]
    fleet.provider.set_responses(StreamedResponse(events=CHAT.call_events(calls)))
    async with clients.openai.responses.stream(model="model", input="x", tools=[WEATHER]) as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_response()
    called = [(item.call_id, item.name, item.arguments) for item in whole.output if item.type == "function_call"]
    assert called == [("c1", "weather", '{"city": "Paris"}'), ("c2", "weather", "{}")]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert done == ['{"city": "Paris"}', "{}"]
