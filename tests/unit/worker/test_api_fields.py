"""Every field of the vendors' requests, from the type lists of their packages: carried, translated, or refused by name.

The tables of ``docs/protocol/fields.md`` are what a recorder at the provider received; a field that a new version of a
package adds has no sample here, and fails the first test. To write the tables again after a change on purpose:
``QUINTAIN_RECORD_SNAPSHOTS=1 make test ARGS=tests/unit/worker/test_api_fields.py``.
"""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anthropic.types.beta.message_create_params
import anthropic.types.message_create_params
import openai.types.chat.completion_create_params
import openai.types.completion_create_params
import openai.types.embedding_create_params
import openai.types.responses.response_create_params
import pytest

from quintain.apis.policy import PUBLISHED_FIELDS
from quintain.contracts.api_request import ApiName, ApiRequest, json_text, parse_json_object
from quintain.errors import BadRequest
from quintain_worker.providers.provider import ApiProvider, Provider, ProviderAnswer, ProviderFailure
from support.model_calls import QUESTIONS, added_paths, api_provider, at_the_vendors
from support.model_server import ModelServer, ScriptedResponse
from support.model_wires import ANTHROPIC, CHAT, RESPONSES
from support.pages import assert_documented

FUNCTION: dict[str, Any] = {"name": "f", "description": "d", "parameters": {"type": "object"}}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL = {"type": "function", **FUNCTION}
ANTHROPIC_TOOL = {"name": "f", "input_schema": {"type": "object"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

#: Fields of a request that are no part of a published body: the call itself says them.
OF_THE_CALL = frozenset({"model", "stream", "stream_options", "betas"})

#: A value of each field, of each API.
SAMPLES: Mapping[ApiName, Mapping[str, Any]] = {
    "chat": {
        "audio": {"voice": "alloy", "format": "wav"}, "frequency_penalty": 0.5, "function_call": "auto",
        "functions": [FUNCTION], "logit_bias": {"50256": -100}, "logprobs": True, "max_completion_tokens": 7,
        "max_tokens": 7, "messages": QUESTIONS["chat"]["messages"], "metadata": {"a": "b"},
        "modalities": ["text", "audio"], "moderation": {"model": "omni-moderation-latest"}, "n": 2,
        "parallel_tool_calls": False, "prediction": {"type": "content", "content": "x"}, "presence_penalty": 0.5,
        "prompt_cache_key": "k", "prompt_cache_options": {"ttl": "1h"}, "prompt_cache_retention": "24h",
        "reasoning_effort": "high", "response_format": SCHEMA, "safety_identifier": "s", "seed": 7,
        "service_tier": "flex", "stop": ["END"], "store": True, "temperature": 0.5, "tool_choice": "required",
        "tools": [CHAT_TOOL], "top_logprobs": 3, "top_p": 0.5, "user": "u", "verbosity": "low",
        "web_search_options": {},
    },
    "responses": {
        "access_programs": ["x"], "background": True, "context_management": [{"type": "compaction"}],
        "conversation": "conv_1", "image": "x", "include": ["message.output_text.logprobs"], "input": "q",
        "instructions": "s", "max_output_tokens": 7, "max_tool_calls": 2, "metadata": {"a": "b"},
        "moderation": {"model": "omni-moderation-latest"}, "parallel_tool_calls": False,
        "previous_response_id": "resp_1", "prompt": {"id": "pmpt_1"}, "prompt_cache_key": "k",
        "prompt_cache_options": {"ttl": "1h"}, "prompt_cache_retention": "24h", "reasoning": {"effort": "high"},
        "safety_identifier": "s", "service_tier": "flex", "store": True, "temperature": 0.5,
        "text": {"verbosity": "low"}, "tool_choice": "required", "tools": [RESPONSES_TOOL], "top_logprobs": 3,
        "top_p": 0.5, "truncation": "auto", "user": "u",
    },
    "completions": {
        "best_of": 2, "echo": True, "frequency_penalty": 0.5, "logit_bias": {"50256": -100}, "logprobs": 3,
        "max_tokens": 7, "n": 2, "presence_penalty": 0.5, "prompt": "q", "seed": 7, "stop": ["END"], "suffix": "x",
        "temperature": 0.5, "top_p": 0.5, "user": "u",
    },
    "embeddings": {"dimensions": 3, "encoding_format": "float", "input": "q", "user": "u"},
    "messages": {
        "billing_policy": "x", "cache_control": {"type": "ephemeral"}, "compaction": {"type": "auto"}, "container": "c",
        "context_management": {"edits": []}, "diagnostics": {"a": True}, "fallback_credit_token": "x",
        "fallbacks": ["m"], "inference_geo": "us", "max_tokens": 9,
        "mcp_servers": [{"type": "url", "url": "https://example.org"}], "messages": QUESTIONS["messages"]["messages"],
        "metadata": {"user_id": "u"}, "output_config": {"effort": "high"}, "service_tier": "auto", "speed": "fast",
        "stop_sequences": ["END"], "system": "s", "temperature": 0.5,
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "thread": "t", "tool_choice": {"type": "any"},
        "tools": [ANTHROPIC_TOOL], "top_k": 5, "top_p": 0.5, "user_profile_id": "p", "workspace_id": "w",
    },
}  # fmt: skip

#: What a field needs beside it.
TOOLS: Mapping[ApiName, object] = {"chat": [CHAT_TOOL], "responses": [RESPONSES_TOOL], "messages": [ANTHROPIC_TOOL]}
NEED_TOOLS = frozenset({"tool_choice", "parallel_tool_calls"})

IGNORED = "named in `x-quintain-ignored`"

ANSWERS: Mapping[ApiName, dict[str, object]] = {
    "chat": CHAT.answer("Fine."),
    "responses": RESPONSES.answer("Fine."),
    "completions": {"model": "m", "choices": [{"index": 0, "text": "Fine.", "finish_reason": "stop"}]},
    "embeddings": {"model": "m", "data": [{"index": 0, "embedding": [0.5]}]},
    "messages": ANTHROPIC.answer("Fine."),
}


def field_names(params: object) -> set[str]:
    """The fields of a request of a vendor's package, which has a type for each way to call it."""
    kinds = typing.get_args(params) or (params,)
    return {name for kind in kinds for name in typing.get_type_hints(kind)} - OF_THE_CALL


LISTS: Mapping[ApiName, set[str]] = {
    "chat": field_names(openai.types.chat.completion_create_params.CompletionCreateParams),
    "responses": field_names(openai.types.responses.response_create_params.ResponseCreateParams),
    "completions": field_names(openai.types.completion_create_params.CompletionCreateParams),
    "embeddings": field_names(openai.types.embedding_create_params.EmbeddingCreateParams),
    "messages": field_names(anthropic.types.message_create_params.MessageCreateParams)
    | field_names(anthropic.types.beta.message_create_params.MessageCreateParams),
}

#: What Anthropic's older models take, and its package has no more.
OLDER = {"messages": {"temperature", "top_k", "top_p"}}


@pytest.fixture
def vendors_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_vendors(monkeypatch)


@asynccontextmanager
async def provider_of(server: ModelServer, api: ApiName) -> AsyncIterator[Provider]:
    server.set_responses(ScriptedResponse(body=ANSWERS[api]))
    provider = api_provider(server.url, api)
    try:
        yield provider
    finally:
        await provider.close()


async def ask(provider: Provider, request: ApiRequest) -> ProviderAnswer:
    assert isinstance(provider, ApiProvider)
    provider.check(request)
    try:
        return await provider.answer(request, timeout_seconds=10)
    except ProviderFailure as failure:
        raise failure.fault from None


@pytest.mark.parametrize("api", SAMPLES)
def test_every_field_of_the_packages_is_known(api: ApiName) -> None:
    assert SAMPLES[api].keys() == LISTS[api] | OLDER.get(api, set())
    assert PUBLISHED_FIELDS[api] - OF_THE_CALL == SAMPLES[api].keys()


@pytest.mark.usefixtures("vendors_hosts")
@pytest.mark.parametrize("api", SAMPLES)
async def test_a_field_is_equal_json_at_its_own_api_or_refused_by_name(server: ModelServer, api: ApiName) -> None:
    async with provider_of(server, api) as provider:
        for name in SAMPLES[api]:
            cell = await cell_of(server, provider, api, api, name)
            # Nothing is stored at a provider.
            assert cell in (("carried", "refused") if name != "store" else (IGNORED,)), (name, cell)


@pytest.mark.usefixtures("vendors_hosts")
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_the_table_of_fields_is_what_the_providers_received(server: ModelServer, api: ApiName) -> None:
    apis: list[ApiName] = [api, *(other for other in TOOLS if other != api)]
    columns = []
    # The gateway makes a call of its own for each answer.
    names = [name for name in SAMPLES[api] if name != "n"]
    for own in apis:
        async with provider_of(server, own) as provider:
            columns.append([await cell_of(server, provider, own, api, name) for name in names])
    rows = [[f"`{name}`", *cells] for name, *cells in zip(names, *columns, strict=True)]
    heads = ["field", "at its own API", *(f"at `{own}`" for own in apis[1:])]
    assert_documented(f"{api} fields", [heads, *rows])


async def cell_of(server: ModelServer, provider: Provider, own: ApiName, api: ApiName, name: str) -> str:
    """What becomes of a field of a request of ``api`` at a provider of ``own``, from the request that it receives."""
    sample, asked = SAMPLES[api][name], len(server.requests)
    without = {**QUESTIONS[api], **({"tools": TOOLS[api]} if name in NEED_TOOLS else {})}
    answer, refusal = await outcome_of(provider, ApiRequest(api, json_text(without | {name: sample})))
    if answer is None:
        assert refusal.startswith(name)
        assert len(server.requests) == asked
        return "refused"
    with_it = dict(server.requests[-1].body)
    if own == api and name != "store":
        assert with_it[name] == sample
        return "carried"
    if name in answer.ignored:
        return IGNORED
    if name in QUESTIONS[api]:
        return "translated"
    await ask(provider, ApiRequest(api, json_text(without)))
    paths = sorted(set(added_paths(server.requests[-1].body, with_it)))
    assert paths, f"{name} had no effect on the request"
    is_same = with_it.get(name) == sample
    return "carried" if is_same else f"as {' and '.join(f'`{path}`' for path in paths)}"


async def outcome_of(provider: Provider, request: ApiRequest) -> tuple[ProviderAnswer | None, str]:
    """The answer, or None and the sentence of a refusal."""
    try:
        return await ask(provider, request), ""
    except BadRequest as refused:
        return None, refused.message


@pytest.mark.parametrize("api", SAMPLES)
async def test_numbers_and_nulls_and_unknown_fields_keep_their_own_text(server: ModelServer, api: ApiName) -> None:
    sent = b'{"temperature":1.0,"seed":12345678901234567890123,"x":[1E2,{"\\u00e9":"\\/"}],"user":null,"top_p":0.10}'
    body, _ = parse_json_object(sent)
    question = json_text(QUESTIONS[api])
    both = type(body)({**question.values, **body.values}, {**question.texts, **body.texts})
    async with provider_of(server, api) as provider:
        await ask(provider, ApiRequest(api, both, {"anthropic-beta": "a,b"}))
    received, _ = parse_json_object(server.requests[-1].raw)
    assert body.texts.items() <= received.texts.items()
    assert set(received.texts) - set(both.texts) <= {"model", "store"}
    assert server.requests[-1].headers["anthropic-beta"] == "a,b"
