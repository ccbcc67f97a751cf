"""Models of other vendors over pydantic-ai: what they are asked, what is read, and what a failure costs."""

from __future__ import annotations

import asyncio
import base64
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import exceptions
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from quintain.config.prices import target_price
from quintain.config.targets import PydanticAITarget
from quintain.contracts.invoke import InvokeRequest, Reasoning, ReasoningChunk, TokenUsage, ToolCall
from quintain.errors import BadRequest, ConfigError, ProviderFailed, Throttled, TimedOut
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderContext, ProviderFailure
from quintain_worker.providers.pydantic_ai import PydanticAIProvider
from support.model_calls import QUESTION, call, failed_call
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import chat_call_events, chat_events, chat_reasoning_events
from support.model_wires import KEY, chat_answer, chat_calls

CONTEXT = ProviderContext(Path.cwd(), {})
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
PNG = f"data:image/png;base64,{base64.b64encode(b'png').decode()}"


def target_of(**fields: object) -> PydanticAITarget:
    return PydanticAITarget.model_validate({"provider": "pydantic-ai", "model": "openai-chat:some-model", **fields})


def over_socket(server: ModelServer, **fields: object) -> Provider:
    """The provider of a model behind a server with OpenAI's API."""
    return build_provider("it", target_of(base_url=f"{server.url}/v1", api_key=KEY, **fields), CONTEXT)


async def refusal_of(server: ModelServer, **fields: object) -> ProviderFailure:
    """The failure of a request that is not sent, and costs nothing."""
    request = InvokeRequest.model_validate({"question": None if "messages" in fields else "?", **fields})
    failed = await failed_call(over_socket(server), request)
    assert isinstance(failed.fault, BadRequest)
    assert (failed.billing, server.requests) == (Billing.UNBILLED, [])
    return failed


async def test_a_conversation_goes_to_the_model_as_it_is() -> None:
    seen: list[tuple[list[Any], AgentInfo]] = []

    def reply(messages: list[Any], info: AgentInfo) -> ModelResponse:
        seen.append((messages, info))
        return ModelResponse([TextPart("Fine.")], usage=RequestUsage(input_tokens=3, output_tokens=2))

    turns = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": PNG}}],
        },
        {"role": "assistant", "content": "", "toolCalls": [{"id": "c", "name": "add", "arguments": '{"a": 1}'}]},
        {"role": "tool", "content": "2", "toolCallId": "c"},
    ]
    settings = {"temperature": 0.5, "stop": "x", "tools": [TOOL], "toolChoice": TOOL | {"function": {"name": "add"}}}
    request = InvokeRequest.model_validate({"systemPrompt": "Obey.", "messages": turns, "settings": settings})
    answer = await call(PydanticAIProvider(target_of(max_tokens=9), FunctionModel(reply)), request)
    assert (answer.text, answer.ignored) == ("Fine.", ())
    assert answer.token_usage == TokenUsage(input=3, output=2)

    ((system, user, assistant, result), info) = seen[0]
    assert system.parts[0].content == "Obey."
    text, image = user.parts[0].content
    assert isinstance(image, BinaryContent)
    assert (text, image.data, image.media_type) == ("See", b"png", "image/png")
    assert [(part.tool_name, part.args_as_dict()) for part in assistant.parts] == [("add", {"a": 1})]
    assert isinstance(result.parts[0], ToolReturnPart)
    assert (result.parts[0].tool_name, result.parts[0].content) == ("add", "2")
    assert [tool.name for tool in info.function_tools] == ["add"]
    assert info.model_settings is not None
    asked = {name: info.model_settings.get(name) for name in ("temperature", "max_tokens", "stop_sequences")}
    assert asked == {"temperature": 0.5, "max_tokens": 9, "stop_sequences": ["x"]}
    assert info.model_settings.get("tool_choice") == ["add"]


async def test_an_answer_has_its_reasoning_its_calls_and_all_its_tokens() -> None:
    def reply(messages: list[Any], info: AgentInfo) -> ModelResponse:
        parts = [ThinkingPart("Hm.", signature="s"), TextPart("So:"), ToolCallPart("add", {"a": 1}, "c")]
        usage = RequestUsage(input_tokens=9, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)
        usage.details["reasoning_tokens"] = 4
        return ModelResponse(parts, usage=usage, finish_reason="tool_call")

    answer = await call(PydanticAIProvider(target_of(), FunctionModel(reply)))
    assert answer.token_usage == TokenUsage(input=9, output=5, cached=3, cache_write=2, reasoning=4)
    assert answer.finish_reason == "tool_calls"
    assert answer.output is not None
    assert answer.output[0].reasoning == [Reasoning(text="Hm.", signature="s")]
    assert answer.output[0].tool_calls == [ToolCall(id="c", name="add", arguments='{"a":1}')]


async def test_an_answer_that_ended_by_an_error_is_none_and_half_of_a_character_is_replaced() -> None:
    def reply(text: str, reason: Any) -> FunctionModel:
        return FunctionModel(lambda _messages, _info: ModelResponse([TextPart(text)], finish_reason=reason))

    failed = await failed_call(PydanticAIProvider(target_of(), reply("par", "error")))
    assert isinstance(failed.fault, ProviderFailed)
    assert failed.billing is Billing.UNKNOWN
    assert (await call(PydanticAIProvider(target_of(), reply("a\ud83c", "stop")))).text == "a\ufffd"


async def test_over_a_socket_one_try_is_one_request_with_the_targets_key(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=chat_calls([("c", "add", '{"a": 1}')])))
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    settings = {"seed": 7, "responseFormat": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    request = InvokeRequest.model_validate({"question": "Add.", "settings": settings})
    answer = await call(over_socket(server), request)
    assert answer.output is not None
    assert answer.output[0].tool_calls == [ToolCall(id="c", name="add", arguments='{"a": 1}')]
    assert answer.token_usage is not None
    assert answer.model == "served-2026-01-01"
    (received,) = server.requests
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.body["seed"] == 7
    assert received.body["response_format"]["json_schema"]["name"] == "x"  # type: ignore[index,call-overload]


async def test_a_stream_comes_in_pieces_with_the_reasoning_before_the_text(server: ModelServer) -> None:
    server.set_responses(StreamedResponse(events=chat_reasoning_events(["H", "m."], ["Fi", "ne."])))
    pieces: list[Any] = []
    answer = await call(over_socket(server), heard=pieces)
    thoughts = [piece.text for piece in pieces if isinstance(piece, ReasoningChunk)]
    assert "".join(thoughts) == "Hm."
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == answer.text == "Fine."
    assert isinstance(pieces[0], ReasoningChunk)
    assert answer.token_usage is not None
    assert answer.output is not None

    server.set_responses(StreamedResponse(events=chat_call_events([("c", "add", ['{"a"', ": 1}"])])))
    answer = await call(over_socket(server), heard=pieces)
    assert answer.output is not None
    assert answer.output[0].tool_calls == [ToolCall(id="c", name="add", arguments='{"a": 1}')]


REFUSED: dict[str, dict[str, Any]] = {
    "settings.minP": {"settings": {"minP": 0.5}},
    "settings.extraBody": {"settings": {"extraBody": {"a": 1}}},
    "settings.logprobs": {"settings": {"logprobs": True}},
    "settings.topK": {"settings": {"topK": 3}},
    "settings.reasoningEffort": {"settings": {"reasoningEffort": "high"}},
    "settings.responseFormat": {"settings": {"responseFormat": {"type": "json_object"}}},
    "settings.tools[0]": {"settings": {"tools": [{"type": "web_search"}]}},
    "settings.toolChoice": {
        "settings": {"tools": [TOOL], "toolChoice": {"type": "function", "function": {"name": "z"}}}
    },
    "messages[1].role": {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
    "messages[0].toolCallId": {"messages": [{"role": "tool", "content": "a", "toolCallId": "z"}]},
    "messages[0].toolCalls[0].arguments": {
        "messages": [
            {"role": "assistant", "content": "", "toolCalls": [{"id": "c", "name": "add", "arguments": "[1]"}]},
        ]
    },
}

PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}},
    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
    {"type": "input_audio", "input_audio": {}},
    {"type": "file", "file": {"file_id": "f"}},
]


@pytest.mark.parametrize("field", REFUSED)
async def test_what_it_cannot_carry_is_refused_by_name_and_not_sent(server: ModelServer, field: str) -> None:
    assert (await refusal_of(server, **REFUSED[field])).fault.message.startswith(f"{field}: ")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["type"])
async def test_a_part_that_it_cannot_carry_is_refused_by_name_and_nothing_is_fetched(
    server: ModelServer, part: dict[str, Any]
) -> None:
    failed = await refusal_of(server, messages=[{"role": "user", "content": [part]}])
    assert failed.fault.message.startswith("messages[0].content[0]: ")


async def test_what_is_left_out_where_the_caller_says_so_is_named(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=chat_answer("Fine.")))
    turns = [{"role": "assistant", "content": "a", "reasoning": [{"text": "Hm."}]}, {"role": "user", "content": "b"}]
    settings = {"minP": 0.5, "responseFormat": {"type": "json_object"}, "unsupported": "ignore"}
    answer = await call(over_socket(server), InvokeRequest.model_validate({"messages": turns, "settings": settings}))
    assert set(answer.ignored) == {"minP", "responseFormat", "messages.reasoning"}
    assert "Hm." not in server.requests[0].raw.decode()


STATUSES = [
    (401, Billing.UNBILLED, False),
    (404, Billing.UNBILLED, False),
    (429, Billing.UNBILLED, True),
    (503, Billing.UNBILLED, True),
    (400, Billing.BILLED, False),
    (500, Billing.BILLED, True),
]


@pytest.mark.parametrize(("status", "billing", "retryable"), STATUSES)
async def test_a_status_says_what_a_failure_costs(
    server: ModelServer, status: int, billing: Billing, retryable: bool
) -> None:
    body = {"error": {"message": f"no, {KEY}", "code": "a_code"}}
    server.set_responses(ScriptedResponse(status=status, headers={"retry-after": "7"}, body=body))
    failure = await failed_call(over_socket(server))
    assert (failure.billing, failure.retryable) == (billing, retryable)
    assert failure.retry_after_seconds == 7
    assert KEY not in failure.fault.message
    assert len(server.requests) == 1


async def test_what_cannot_be_proven_unbilled_is_in_doubt(server: ModelServer) -> None:
    lost = await failed_call(_closing(server))
    assert (lost.billing, lost.retryable) == (Billing.UNKNOWN, True)

    server.set_responses(StreamedResponse(events=chat_events(["Fi", "ne."]), event_count=2, framed=False, then="close"))
    broken = await failed_call(over_socket(server), heard=[])
    assert (broken.billing, broken.retryable) == (Billing.UNKNOWN, True)

    server.set_responses(ScriptedResponse(body=b"<html>"))
    assert (await failed_call(over_socket(server))).billing is Billing.UNKNOWN


async def test_the_deadline_leaves_a_call_in_doubt() -> None:
    async def reply(messages: list[Any], info: AgentInfo) -> ModelResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    provider = PydanticAIProvider(target_of(), FunctionModel(reply))
    with pytest.raises(ProviderFailure) as late:
        await provider.answer(QUESTION, timeout_seconds=0.01)
    assert isinstance(late.value.fault, TimedOut)
    assert late.value.billing is Billing.UNKNOWN


async def test_a_cancelled_call_closes_its_connection(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(stall=True))
    provider = over_socket(server)
    call = asyncio.create_task(provider.answer(QUESTION, timeout_seconds=60))
    await server.arrived.wait()
    call.cancel()
    await server.disconnected.wait()
    await asyncio.wait([call])
    assert call.cancelled()
    await provider.close()


def _closing(server: ModelServer) -> Provider:
    server.set_responses(ScriptedResponse(body=chat_answer("Fine."), close_after=20))
    return over_socket(server)


async def test_a_server_that_cannot_be_reached_costs_nothing(unused_tcp_port: int) -> None:
    target = target_of(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1", api_key=KEY)
    failure = await failed_call(build_provider("it", target, CONTEXT))
    assert isinstance(failure.fault, ProviderFailed)
    assert (failure.billing, failure.retryable) == (Billing.UNBILLED, True)


class RetryingModel(FunctionModel):
    """A model whose client repeats requests by itself, as Bedrock's does."""

    unsupported_settings = frozenset({"max_retries"})


async def test_a_client_that_repeats_by_itself_gets_no_refund() -> None:
    def reply(messages: list[Any], info: AgentInfo) -> ModelResponse:
        raise exceptions.ModelHTTPError(429, "m", body={"message": "slow"}, headers={"retry-after": "1"})

    async def billing_with(model: Model) -> Billing:
        failure = await failed_call(PydanticAIProvider(target_of(), model))
        assert isinstance(failure.fault, Throttled)
        return failure.billing

    assert await billing_with(FunctionModel(reply)) is Billing.UNBILLED
    assert await billing_with(RetryingModel(reply)) is Billing.UNKNOWN


WRONG: dict[str, dict[str, Any]] = {
    "a vendor that there is not": {"model": "no-such-vendor:m"},
    "no key": {"model": "openai-chat:m"},
    "a setting that it lacks": {"base_url": "http://127.0.0.1:1/v1", "api_key": KEY, "settings": {"min_p": 0.5}},
    "a package that is not installed": {"model": "bedrock:m"},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_target_that_cannot_work_is_refused_when_it_is_made(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"^targets\.it") as caught:
        build_provider("it", target_of(**WRONG[case]), CONTEXT)
    assert KEY not in caught.value.message


def test_its_list_price_is_the_vendors() -> None:
    price = target_price(target_of(model="mistral:mistral-large-latest"))
    assert price is not None
    assert price.output_per_million > price.input_per_million > Decimal(0)
    assert target_price(target_of(model="mistral:a-model-of-our-own")) is None


def test_a_provider_whose_extra_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "quintain_worker.providers.pydantic_ai", raising=False)
    # None is how the interpreter knows that a module cannot be imported.
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    with pytest.raises(ConfigError, match=r"pip install 'quintain\[pydantic-ai\]'"):
        build_provider("judge", target_of(model="mistral:m"), CONTEXT)
