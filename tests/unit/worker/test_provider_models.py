"""Models over the real wire: what is sent, what is read, and that both are byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.invoke import InvokeRequest, OutputMessage, TokenUsage
from quintain.errors import BadRequest, TimedOut
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse
from support.model_wires import ANTHROPIC, CHAT, KEY, RESPONSES, WIRES, Wire
from support.skipped_time import skip_waits

QUESTION = InvokeRequest(question="How are you?")

#: Text that libraries like to mend: chat-template tokens, thinking tags, invisible characters, white space.
TRICKY = (
    "  <|im_start|>system\nobey<|im_end|> [INST] x [/INST] <start_of_turn> <\uff5cUser\uff5c> ]~b] <\u200d|im_end|>"
    " <think>aloud</think> <think> é\u200d\u200b\ufeff 🏇 \r\n\t$ {x} ${{ Y }} "
)

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
both = pytest.mark.parametrize("wire", [CHAT, ANTHROPIC], ids=lambda wire: wire.name)


async def answer_of(provider: Provider, request: InvokeRequest | None = None) -> ProviderAnswer:
    try:
        return await provider.answer(request or QUESTION, timeout_seconds=10)
    finally:
        await provider.close()


async def refusal_message(provider: Provider, **fields: object) -> str:
    """The sentence of a request that was refused before anything was sent."""
    with pytest.raises(ProviderFailure) as caught:
        await answer_of(provider, InvokeRequest.model_validate(fields))
    assert isinstance(caught.value.fault, BadRequest)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNBILLED, False)
    return caught.value.fault.message


@wires
async def test_an_answer_says_what_it_cost_and_which_model_really_served_it(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    answer = await answer_of(wire.provider(server.url))
    assert (answer.text, answer.model, answer.finish_reason) == ("Fine.", "served-2026-01-01", "stop")
    reasoning = None if wire is ANTHROPIC else 3
    assert answer.token_usage == TokenUsage(input=21, output=9, cached=4, reasoning=reasoning)


@wires
async def test_the_key_goes_in_its_header_and_nowhere_else(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    await answer_of(wire.provider(server.url))
    asked = server.requests[0]
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert KEY.encode() not in asked.raw
    assert KEY not in asked.path


@wires
async def test_where_no_key_is_set_the_environments_key_is_not_sent_in_its_place(
    server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    await answer_of(wire.provider(server.url, api_key=None))
    assert KEY not in str(server.requests[0].headers)


@both
async def test_a_conversation_arrives_byte_for_byte_and_so_does_the_answer(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer(TRICKY)))
    request = InvokeRequest.model_validate(
        {
            "systemPrompt": f"s{TRICKY}",
            "messages": [
                {"role": "user", "content": f"1{TRICKY}"},
                {"role": "assistant", "content": [{"type": "text", "text": "2"}, {"text": TRICKY}]},
                {"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": TRICKY}]},
            ],
        }
    )
    answer = await answer_of(wire.provider(server.url), request)
    assert answer.text == TRICKY
    body = server.requests[0].body

    def said(text: str) -> object:
        return text if wire is CHAT else [{"type": "text", "text": text}]

    turns = [
        {"role": "user", "content": f"1{TRICKY}"},
        {"role": "assistant", "content": said(f"2{TRICKY}")},
        {"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": TRICKY}]},
    ]
    if wire is CHAT:
        assert body["messages"] == [{"role": "system", "content": f"s{TRICKY}"}, *turns]
    else:
        assert (body["system"], body["messages"]) == (f"s{TRICKY}", turns)


async def test_the_responses_api_gets_the_conversation_byte_for_byte_too(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=RESPONSES.answer(TRICKY)))
    request = InvokeRequest(question=TRICKY, system_prompt=f"s{TRICKY}")
    assert (await answer_of(RESPONSES.provider(server.url), request)).text == TRICKY
    body = server.requests[0].body
    assert server.requests[0].path == "/v1/responses"
    assert body["input"] == [
        {"role": "system", "content": f"s{TRICKY}"},
        {"role": "user", "content": TRICKY},
    ]
    assert sorted(body) == ["input", "model", "store"]
    assert body["store"] is False


@pytest.mark.parametrize(("wire", "model"), [(CHAT, "o3"), (CHAT, "gpt-5.6"), (ANTHROPIC, "claude-opus-4-8")])
async def test_a_setting_is_sent_even_to_a_model_thought_not_to_take_it(
    server: ModelServer, wire: Wire, model: str
) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    request = InvokeRequest.model_validate(
        {"question": "q", "settings": {"temperature": 0, "maxTokens": 10_000_000, "stop": "END"}}
    )
    await answer_of(wire.provider(server.url, model=model, temperature=1.0, max_tokens=5), request)
    body = server.requests[0].body
    assert (body["model"], body["temperature"], body["max_tokens"]) == (model, 0, 10_000_000)
    assert body["stop" if wire is CHAT else "stop_sequences"] == ["END"]


@pytest.mark.parametrize(
    ("wire", "settings", "field"),
    [
        (RESPONSES, {"seed": 1}, "settings.seed"),
        (RESPONSES, {"stop": "x"}, "settings.stop"),
        (RESPONSES, {"responseFormat": {"type": "grammar"}}, "settings.responseFormat"),
        (ANTHROPIC, {"seed": 1}, "settings.seed"),
        (ANTHROPIC, {"responseFormat": {"type": "json_object"}}, "settings.responseFormat"),
        (ANTHROPIC, {"responseFormat": {"type": "json_schema"}}, "settings.responseFormat"),
    ],
)
async def test_what_a_provider_cannot_honour_is_refused_by_name(
    server: ModelServer, wire: Wire, settings: dict[str, object], field: str
) -> None:
    message = await refusal_message(wire.provider(server.url), question="q", settings=settings)
    assert message.startswith(f"{field}: ")
    assert server.requests == []


USER = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("wire", "messages", "field"),
    [
        (ANTHROPIC, [USER, {"role": "system", "content": "now"}, USER], "messages[1].role"),
        (ANTHROPIC, [USER, {"role": "assistant", "content": ""}, USER], "messages[1].content"),
    ],
)
async def test_a_message_a_provider_cannot_take_is_refused_by_name(
    server: ModelServer, wire: Wire, messages: list[object], field: str
) -> None:
    message = await refusal_message(wire.provider(server.url), systemPrompt="s", messages=messages)
    assert message.startswith(f"{field}: ")
    assert server.requests == []


async def test_openai_takes_system_messages_anywhere(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.")))
    turns = [USER, {"role": "system", "content": "now"}, {"role": "assistant", "content": ""}]
    request = InvokeRequest.model_validate({"systemPrompt": "s", "messages": turns})
    await answer_of(CHAT.provider(server.url), request)
    assert server.requests[0].body["messages"] == [{"role": "system", "content": "s"}, *turns]


async def test_a_refusal_is_what_the_model_said(server: ModelServer) -> None:
    body = CHAT.answer("")
    body["choices"] = [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "refusal": "I will not."}}
    ]
    server.set_responses(ScriptedResponse(body=body))
    answer = await answer_of(CHAT.provider(server.url))
    assert (answer.text, answer.finish_reason) == ("I will not.", "content_filter")
    assert answer.output == [OutputMessage(content="I will not.", refusal="I will not.")]


async def test_a_server_that_counts_no_tokens_leaves_the_usage_out(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.") | {"usage": None}))
    assert (await answer_of(CHAT.provider(server.url))).token_usage is None


@both
async def test_connections_are_kept_and_used_again(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")))
    provider = wire.provider(server.url)
    for _ in range(10):
        await provider.answer(QUESTION, timeout_seconds=10)
    await provider.close()
    assert (len(server.requests), server.connections) == (10, 1)


@both
async def test_calls_run_side_by_side(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(stall=True), ScriptedResponse(body=wire.answer("Fine.")))
    provider = wire.provider(server.url, max_concurrency=1)
    slow = asyncio.create_task(provider.answer(QUESTION, timeout_seconds=10))
    await server.arrived.wait()
    assert (await provider.answer(QUESTION, timeout_seconds=10)).text == "Fine."
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    await provider.close()


@both
async def test_a_deadline_ends_the_call_in_doubt_and_closes_the_connection(server: ModelServer, wire: Wire) -> None:
    server.set_responses(ScriptedResponse(body=wire.answer("Fine.")), ScriptedResponse(stall=True))
    provider = wire.provider(server.url)
    await provider.answer(QUESTION, timeout_seconds=10)
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(QUESTION, timeout_seconds=0.5)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)
    await asyncio.wait_for(server.disconnected.wait(), 10)
    assert len(server.requests) == 2
    await provider.close()


@both
async def test_a_model_that_sends_goes_on_and_one_that_is_silent_for_too_long_is_ended(
    server: ModelServer, wire: Wire
) -> None:
    skip_waits()
    slow = ScriptedResponse(body=wire.answer("Fine."), trickle_seconds=0.005)
    server.set_responses(ScriptedResponse(stall=True), slow)
    provider = wire.provider(server.url, idle_seconds=0.3)
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(QUESTION, timeout_seconds=10)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)
    assert (await provider.answer(QUESTION, timeout_seconds=10)).text == "Fine."
    await provider.close()
