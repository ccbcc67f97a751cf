"""OpenAI's Responses API over a real socket: its official client, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from support.model_fleet import ModelFleet
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_streams import chat_reasoning_events
from support.model_wires import chat_answer, chat_calls
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
