"""vLLM's own parameters, as its documentation writes them: in the openai client's ``extra_body``, and as JSON.

A compatible server gets equal JSON, whether a caller sends them or the target's configuration does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from quintain.client.client import connect
from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from support.memory_fleet import MemoryFleet, memory_fleet
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import chat_answer, responses_answer
from support.official_clients import openai_client

CONFIG = """
targets:
  vllm: {provider: openai, model: Qwen/Qwen3-8B, base_url: "{url}/v1", api: [chat, completions, responses]}
  quiet:
    provider: openai
    model: Qwen/Qwen3-8B
    base_url: "{url}/v1"
    settings:
      top_k: 20
      extra_body: {chat_template_kwargs: {enable_thinking: false}, min_tokens: 1}
"""

MESSAGES: Any = [{"role": "user", "content": "Is vLLM wonderful?"}]
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "api_key": {"type": "string"}}}

#: By the page's subject: what is written into ``extra_body``.
EXTRA: Mapping[str, dict[str, Any]] = {
    "reasoning": {"chat_template_kwargs": {"enable_thinking": False}},
    "nested template arguments": {"chat_template_kwargs": {"thinking": True, "tools": [{"a": None}], "n": 3}},
    "template": {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}", "add_special_tokens": False},
    "continuing": {"add_generation_prompt": False, "continue_final_message": True, "echo": True},
    "documents": {"documents": [{"title": "It", "text": "It is."}]},
    "choice": {"structured_outputs": {"choice": ["positive", "negative"]}},
    "regex": {"structured_outputs": {"regex": r"\w+@\w+\.com\n"}, "stop": ["\n"]},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "SELECT "', "whitespace_pattern": None}},
    "json": {"structured_outputs": {"json": SCHEMA}},
    "choice as before": {"guided_choice": ["positive", "negative"], "guided_decoding_backend": "xgrammar"},
    "json as before": {"guided_json": {"type": "object", "properties": {"name": {"type": "string"}}}},
    "sampling": {
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
        "length_penalty": 1e-3,
        "stop_token_ids": [151643],
        "allowed_token_ids": [1, 2],
        "bad_words": ["x"],
        "include_stop_str_in_output": False,
        "ignore_eos": True,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
        "truncate_prompt_tokens": -1,
        "prompt_logprobs": 0,
        "use_beam_search": False,
    },
    "serving": {
        "priority": -1,
        "request_id": "mine",
        "cache_salt": "s",
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "vllm_xargs": {"a": 1.50},
        "mm_processor_kwargs": {"num_crops": 4},
        "media_io_kwargs": {"video": {"num_frames": 8}},
    },
}


@pytest.fixture
async def provider() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        server.set_responses(ScriptedResponse(body=chat_answer("Yes")))
        yield server


@pytest.fixture
async def fleet(tmp_path: Path, provider: ModelServer) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG.replace("{url}", provider.url)) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: MemoryFleet) -> AsyncIterator[openai.AsyncOpenAI]:
    token = (await fleet.open_session("vllm")).token
    async with openai_client(fleet.gateway_url, token) as (client, _):
        yield client


async def test_extra_body_of_chat_reaches_the_server_unchanged(
    provider: ModelServer, client: openai.AsyncOpenAI
) -> None:
    for extra in EXTRA.values():
        await client.chat.completions.create(model="vllm", messages=MESSAGES, extra_body=extra)
        assert provider.requests[-1].body == {"model": "Qwen/Qwen3-8B", "messages": MESSAGES, **extra}


async def test_extra_body_of_completions_and_responses_reaches_the_server_unchanged(
    provider: ModelServer, client: openai.AsyncOpenAI
) -> None:
    choice = {"index": 0, "text": "Yes", "finish_reason": "stop", "logprobs": None}
    completion = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    provider.set_responses(ScriptedResponse(body=completion), ScriptedResponse(body=responses_answer("Yes")))
    extra = {**EXTRA["sampling"], **EXTRA["json"]}
    await client.completions.create(model="vllm", prompt="Is it?", extra_body=extra)
    assert provider.requests[-1].body == {"model": "Qwen/Qwen3-8B", "prompt": "Is it?", **extra}
    await client.responses.create(model="vllm", input="Is it?", extra_body=EXTRA["reasoning"])
    own = {"model": "Qwen/Qwen3-8B", "input": "Is it?", "store": False}
    assert provider.requests[-1].body == {**own, **EXTRA["reasoning"]}


async def test_what_the_configuration_sets_is_sent_where_a_caller_sets_nothing(
    fleet: MemoryFleet, provider: ModelServer, client: openai.AsyncOpenAI
) -> None:
    configured = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "min_tokens": 1}
    plain = {"model": "Qwen/Qwen3-8B", "messages": MESSAGES}
    await client.chat.completions.create(model="quiet", messages=MESSAGES)
    assert provider.requests[-1].body == plain | configured
    own = {"chat_template_kwargs": {"enable_thinking": True}}
    await client.chat.completions.create(model="quiet", messages=MESSAGES, extra_body=own)
    assert provider.requests[-1].body == plain | configured | own
    async with connect(fleet.gateway_url, (await fleet.open_session("quiet")).token) as sdk:
        await sdk.invoke(MESSAGES[0]["content"])
        assert provider.requests[-1].body == plain | configured
        settings = InvokeSettings(extra_body=EXTRA["choice"])
        await sdk.send(InvokeRequest(question=MESSAGES[0]["content"], settings=settings))
        assert provider.requests[-1].body == plain | configured | EXTRA["choice"]


async def test_a_field_written_literally_as_extra_body_is_refused_by_its_name(
    provider: ModelServer, client: openai.AsyncOpenAI
) -> None:
    """The client merges ``extra_body`` into the JSON; a program that sends the word itself would be misread."""
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="vllm", messages=MESSAGES, extra_body={"extra_body": EXTRA["reasoning"]}
        )
    assert json.loads(refused.value.response.text)["error"]["param"] == "extra_body"
    assert provider.requests == []
