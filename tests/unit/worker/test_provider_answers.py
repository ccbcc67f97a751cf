"""What comes with an answer's text, over the real wire: log probabilities and reasoning, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.contracts.invoke import InvokeRequest, OutputMessage, Reasoning, ReasoningChunk
from quintain_worker.providers.provider import Delta, OnText, ProviderAnswer
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import anthropic_thinking_events, chat_reasoning_events, responses_reasoning_events
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, Wire

TOKEN: dict[str, Any] = {
    "token": "Yes", "logprob": -0.25, "bytes": [89, 101, 115],
    "top_logprobs": [{"token": "No", "logprob": -1.5, "bytes": [78, 111]}],
}  # fmt: skip


async def answer_of(
    server: ModelServer, wire: Wire, response: ScriptedResponse | StreamedResponse, on_text: OnText = lambda _: None
) -> ProviderAnswer:
    server.set_responses(response)
    provider = wire.provider(server.url)
    callback = on_text if isinstance(response, StreamedResponse) else None
    try:
        return await provider.answer(InvokeRequest(question="q"), timeout_seconds=10, on_text=callback)
    finally:
        await provider.close()


async def test_log_probabilities_come_back_as_the_provider_sent_them(server: ModelServer) -> None:
    body: Any = CHAT.answer("Yes")
    body["choices"][0]["logprobs"] = {"content": [TOKEN], "refusal": None}
    answer = await answer_of(server, CHAT, ScriptedResponse(body=body))
    assert answer.output == [OutputMessage(content="Yes", logprobs=[TOKEN])]
    body = RESPONSES.answer("Yes")
    body["output"][0]["content"][0]["logprobs"] = [TOKEN]
    answer = await answer_of(server, RESPONSES, ScriptedResponse(body=body))
    assert answer.output == [OutputMessage(content="Yes", logprobs=[TOKEN])]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_an_open_models_reasoning_comes_back(server: ModelServer, field: str) -> None:
    body: Any = CHAT.answer("Yes")
    body["choices"][0]["message"][field] = "Hm."
    answer = await answer_of(server, CHAT, ScriptedResponse(body=body))
    assert (answer.text, answer.output) == ("Yes", [OutputMessage(content="Yes", reasoning=[Reasoning(text="Hm.")])])


@pytest.mark.parametrize(
    ("wire", "events", "reasoning"),
    [
        (CHAT, chat_reasoning_events(["H", "m."], ["Ye", "s"]), [Reasoning(text="Hm.")]),
        (
            ANTHROPIC,
            anthropic_thinking_events(["H", "m."], "s", "r", "Yes"),
            [Reasoning(text="Hm.", signature="s"), Reasoning(redacted="r")],
        ),
        (
            RESPONSES,
            responses_reasoning_events([["H", "m."], ["Ye", "s."]], "e"),
            [Reasoning(text="Hm.", signature="e"), Reasoning(text="Yes.")],
        ),
        (RESPONSES, responses_reasoning_events([], "e"), [Reasoning(redacted="e")]),
    ],
    ids=["chat", "anthropic", "responses", "encrypted"],
)
async def test_reasoning_is_streamed_and_comes_back_with_the_whole_answer(
    server: ModelServer, wire: Wire, events: list[bytes], reasoning: list[Reasoning]
) -> None:
    deltas: list[Delta] = []
    answer = await answer_of(server, wire, StreamedResponse(events=events), deltas.append)
    assert answer.output is not None
    assert answer.output[0].reasoning == reasoning
    streamed: dict[int, Reasoning] = {}
    for delta in deltas:
        if isinstance(delta, ReasoningChunk):
            sent = streamed.get(delta.index, Reasoning())
            signature, redacted = sent.signature or delta.signature, delta.redacted
            streamed[delta.index] = Reasoning(text=sent.text + delta.text, signature=signature, redacted=redacted)
    assert streamed == dict(enumerate(reasoning))


async def test_anthropics_thinking_comes_back_with_its_signature(server: ModelServer) -> None:
    body: Any = ANTHROPIC.answer("Yes")
    body["content"][:0] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "r"},
    ]  # fmt: skip
    answer = await answer_of(server, ANTHROPIC, ScriptedResponse(body=body))
    reasoning = [Reasoning(text="Hm.", signature="s"), Reasoning(redacted="r")]
    assert answer.output == [OutputMessage(content="Yes", reasoning=reasoning)]


async def test_a_responses_summary_comes_back(server: ModelServer) -> None:
    body: Any = RESPONSES.answer("Yes")
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    body["output"].insert(0, item)
    answer = await answer_of(server, RESPONSES, ScriptedResponse(body=body))
    assert answer.output == [OutputMessage(content="Yes", reasoning=[Reasoning(text="Hm.")])]
