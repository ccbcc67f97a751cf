"""What callers may not ask of a provider whose key and account they are lent: a recorder at the provider proves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from quintain.config.targets import AnthropicTarget, OpenAITarget
from quintain.contracts.api_request import ApiName, ApiRequest, json_text, parse_json_object
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import BadRequest, UnsupportedParameter
from quintain_worker.providers.provider import ApiProvider, Billing, Provider, ProviderFailure
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, Wire

USER = {"role": "user", "content": "q"}

#: What each API's request is made of.
QUESTIONS: Mapping[ApiName, dict[str, Any]] = {
    "chat": {"messages": [USER]},
    "responses": {"input": "q"},
    "completions": {"prompt": "q"},
    "embeddings": {"input": "q"},
    "messages": {"messages": [USER], "max_tokens": 9},
}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.")))
        yield server


def provider_of(server: ModelServer, api: ApiName, **target: object) -> Provider:
    wire = ANTHROPIC if api == "messages" else CHAT
    return wire.provider(server.url, **({} if api == "messages" else {"api": api}) | target)


async def ask(provider: Provider, api: ApiName, body: Mapping[str, Any]) -> None:
    """One request, as a worker makes it: checked first, then answered."""
    request = ApiRequest(api, json_text(body))
    assert isinstance(provider, ApiProvider)
    try:
        provider.check(request)
        await provider.answer(request, timeout_seconds=10)
    finally:
        await provider.close()


def part(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [fields]}]}


def image(url: str) -> dict[str, object]:
    return part(type="image_url", image_url={"url": url})


def item(**fields: object) -> dict[str, object]:
    return {"input": [fields]}


def said(annotation: dict[str, object]) -> dict[str, object]:
    content = {"type": "output_text", "text": "x", "annotations": [annotation]}
    return item(type="message", role="assistant", content=[content])


def tool(kind: str, **fields: object) -> dict[str, object]:
    return {"tools": [{"type": kind, **fields}]}


#: Requests, each with the field that its refusal names.
HOSTILE: list[tuple[ApiName, dict[str, object], str]] = [
    # Other models.
    ("chat", {"models": ["o3-pro"]}, "models"),
    ("chat", {"Models": ["o3-pro"]}, "Models"),
    ("chat", {"fallbacks": [{"gpt-4o": ["o3-pro"]}]}, "fallbacks"),
    ("chat", {"context_window_fallbacks": [{"a": ["b"]}]}, "context_window_fallbacks"),
    ("chat", {"route": "fallback"}, "route"),
    ("chat", {"provider": {"order": ["elsewhere"]}}, "provider"),
    ("chat", {"preset": "mine"}, "preset"),
    ("chat", {"deployment_id": "o3-pro"}, "deployment_id"),
    ("chat", {"model_list": []}, "model_list"),
    ("chat", {"custom_llm_provider": "openai"}, "custom_llm_provider"),
    ("responses", {"model_id": "o3-pro"}, "model_id"),
    ("completions", {"engine": "davinci"}, "engine"),
    ("messages", {"fallbacks": ["claude-opus-4-8"]}, "fallbacks"),
    ("chat", {"modelName": "o3-pro"}, "modelName"),
    ("chat", {"modelname": "o3-pro"}, "modelname"),
    ("chat", {"lora": [{"id": 1}]}, "lora"),
    ("chat", {"merged_models": ["x"]}, "merged_models"),
    ("chat", {"moderation": {"model": "omni-moderation-latest"}}, "moderation.model"),
    ("responses", {"moderation": {"model": "omni-moderation-latest"}}, "moderation.model"),
    ("responses", {"extra": {"routing": {"models": ["o3-pro"]}}}, "extra.routing.models"),
    (
        "messages",
        {"context_management": {"edits": [{"type": "compact_20260112", "model": "claude-opus-4-8"}]}},
        "context_management.edits[0].model",
    ),
    ("messages", {"compaction": {"model": "claude-opus-4-8"}}, "compaction.model"),
    # Other keys, addresses and accounts.
    ("chat", {"api_key": "sk-mine"}, "api_key"),
    ("chat", {"api-key": "sk-mine"}, "api-key"),
    ("chat", {"api_base": "https://evil.example"}, "api_base"),
    ("chat", {"API_BASE": "https://evil.example"}, "API_BASE"),
    ("chat", {"base_url": "https://evil.example"}, "base_url"),
    ("chat", {"openai_api_key": "sk-mine"}, "openai_api_key"),
    ("chat", {"aws_secret_access_key": "x"}, "aws_secret_access_key"),
    ("chat", {"vertex_credentials": "{}"}, "vertex_credentials"),
    ("chat", {"azure_ad_token": "x"}, "azure_ad_token"),
    ("chat", {"organization": "org-other"}, "organization"),
    ("chat", {"extra_headers": {"authorization": "Bearer x"}}, "extra_headers"),
    ("chat", {"headers": {"host": "evil.example"}}, "headers"),
    ("chat", {"litellm_params": {"api_base": "https://evil.example"}}, "litellm_params"),
    ("chat", {"user_config": {}}, "user_config"),
    ("chat", {"callbacks": ["langfuse"]}, "callbacks"),
    ("chat", {"guardrails": []}, "guardrails"),
    ("embeddings", {"api_base": "https://evil.example"}, "api_base"),
    ("completions", {"kv_transfer_params": {"remote_host": "10.0.0.1"}}, "kv_transfer_params"),
    ("chat", {"apiKey": "sk-mine"}, "apiKey"),
    ("chat", {"baseURL": "https://evil.example"}, "baseURL"),
    ("chat", {"apiBase": "https://evil.example"}, "apiBase"),
    ("chat", {"Authorization": "Bearer x"}, "Authorization"),
    ("chat", {"fallbackModels": ["o3-pro"]}, "fallbackModels"),
    ("chat", {"default_fallbacks": ["o3-pro"]}, "default_fallbacks"),
    ("chat", {"lora_path": "another"}, "lora_path"),
    ("chat", {"adapter_id": "another"}, "adapter_id"),
    ("chat", {"bootstrap_host": "10.0.0.1"}, "bootstrap_host"),
    ("chat", {"apikey": "sk-mine"}, "apikey"),
    ("chat", {"baseurl": "https://evil.example"}, "baseurl"),
    ("chat", {"endpoint_url": "https://evil.example"}, "endpoint_url"),
    ("chat", {"upstream": "evil.example"}, "upstream"),
    ("chat", {"host": "evil.example"}, "host"),
    ("chat", {"access_key": "x"}, "access_key"),
    ("chat", {"session_token": "x"}, "session_token"),
    ("chat", {"remote_engine_id": "x"}, "remote_engine_id"),
    ("chat", {"ec_transfer_params": {"peer_host": "10.0.0.1"}}, "ec_transfer_params"),
    ("chat", {"options": {"apiKey": "sk-mine"}}, "options.apiKey"),
    ("chat", {"context_window_fallback_dict": {"a": "b"}}, "context_window_fallback_dict"),
    ("chat", {"disable_global_guardrails": True}, "disable_global_guardrails"),
    ("chat", {"langfuse_host": "https://evil.example"}, "langfuse_host"),
    ("chat", {"standard_callback_dynamic_params": {}}, "standard_callback_dynamic_params"),
    ("chat", {"input_cost_per_token": 0}, "input_cost_per_token"),
    ("chat", {"no-log": True}, "no-log"),
    ("chat", {"tags": ["another team"]}, "tags"),
    ("chat", {"prompt_id": "another's", "prompt_variables": {}}, "prompt_id"),
    ("chat", {"vllm_xargs": [{"base_url": "https://evil.example"}]}, "vllm_xargs[0].base_url"),
    ("messages", {"workspace_id": "wrkspc_1"}, "workspace_id"),
    ("messages", {"user_profile_id": "p_1"}, "user_profile_id"),
    # What Quintain decides.
    ("chat", {"n": 5}, "n"),
    ("completions", {"best_of": 20}, "best_of"),
    ("chat", {"model": "o3-pro"}, "model"),
    ("chat", {"stream": True}, "stream"),
    ("chat", {"extra_body": {"models": ["o3-pro"]}}, "extra_body"),
    ("responses", {"background": True}, "background"),
    ("messages", {"fallback_credit_token": "x"}, "fallback_credit_token"),
    # What is stored at the provider.
    ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
    ("responses", {"conversation": "conv_1"}, "conversation"),
    ("responses", {"prompt": {"id": "pmpt_1"}}, "prompt"),
    ("responses", item(type="item_reference", id="msg_1"), "input[0].type"),
    (
        "responses",
        item(role="user", content=[{"type": "input_file", "file_id": "file_1"}]),
        "input[0].content[0].file_id",
    ),
    ("responses", item(role="user", content=[{"type": "input_image", "file_id": "f"}]), "input[0].content[0].file_id"),
    ("responses", tool("file_search", vector_store_ids=["vs_1"]), "tools[0].type"),
    ("responses", tool("function", name="f", vector_store_ids=["vs_1"]), "tools[0].vector_store_ids"),
    ("responses", tool("function", name="f", container={"type": "auto"}), "tools[0].container"),
    ("chat", part(type="file", file={"file_id": "file_1"}), "messages[0].content[0].file.file_id"),
    ("chat", {"messages": [USER, {"role": "assistant", "audio": {"id": "audio_1"}}]}, "messages[1].audio.id"),
    ("messages", {"container": "container_1"}, "container"),
    ("messages", part(type="container_upload", file_id="file_1"), "messages[0].content[0].type"),
    ("messages", part(type="image", source={"type": "file", "file_id": "f"}), "messages[0].content[0].source.file_id"),
    ("responses", item(id="msg_1"), "input[0].id"),
    ("responses", item(type=None, id="msg_1"), "input[0].id"),
    ("responses", item(type="image_generation_call", id="ig_1", result=None), "input[0].type"),
    (
        "responses",
        {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
        "prompt_cache_options.comparison_response_id",
    ),
    ("chat", {"audio": {"format": "wav", "voice": {"id": "voice_1"}}}, "audio.voice.id"),
    ("messages", {"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics.previous_message_id"),
    ("chat", {"session_params": {"id": "another caller's"}}, "session_params"),
    # What runs at the provider.
    ("chat", {"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ("responses", {"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
    ("responses", {"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice.type"),
    (
        "responses",
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]}},
        "tool_choice.tools[0].type",
    ),
    (
        "chat",
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "code_interpreter"}]}}},
        "tool_choice.allowed_tools.tools[0].type",
    ),
    ("responses", item(type="mcp_call", id="mcp_1", server_label="x", name="f", arguments="{}"), "input[0].type"),
    ("responses", item(type="mcp_approval_response", approval_request_id="a", approve=True), "input[0].type"),
    ("responses", item(type="mcp_approval_request", id="a", server_label="x", name="f"), "input[0].type"),
    ("responses", item(type="mcp_list_tools", id="m", server_label="x", tools=[]), "input[0].type"),
    ("messages", part(type="mcp_tool_use", id="m", name="f", server_name="x", input={}), "messages[0].content[0].type"),
    (
        "messages",
        {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["direct", "code_execution_20250825"]}]},
        "tools[0].allowed_callers[1]",
    ),
    ("responses", tool("function", name="f", allowed_callers=["programmatic"]), "tools[0].allowed_callers[0]"),
    ("responses", item(type="program", id="p", call_id="c", code="1", fingerprint="x"), "input[0].type"),
    ("completions", {"prompt_embeds": "gASV"}, "prompt_embeds"),
    ("chat", part(type="image_embeds", image_embeds="gASV"), "messages[0].content[0].image_embeds"),
    ("chat", {"logits_processors": [{"qualname": "os.system"}]}, "logits_processors"),
    ("chat", {"custom_logit_processor": "gASV"}, "custom_logit_processor"),
    ("chat", {"web_search_options": {}}, "web_search_options"),
    ("chat", tool("web_search_preview"), "tools[0].type"),
    ("responses", tool("web_search"), "tools[0].type"),
    ("responses", tool("code_interpreter", container={"type": "auto"}), "tools[0].type"),
    ("responses", tool("mcp", server_url="https://evil.example"), "tools[0].type"),
    ("responses", tool("image_generation"), "tools[0].type"),
    ("responses", {"image": "x"}, "image"),
    ("responses", {"tools": {"type": "web_search"}}, "tools.type"),
    ("responses", {"tools": [[{"type": "web_search"}]]}, "tools[0][0].type"),
    ("responses", tool("namespace", name="n", tools=[{"type": "web_search"}]), "tools[0].tools[0].type"),
    ("responses", item(type="tool_search_output", tools=[{"type": "mcp"}]), "input[0].tools[0].type"),
    ("responses", item(type="additional_tools", tools=[{"type": "code_interpreter"}]), "input[0].tools[0].type"),
    (
        "messages",
        part(type="tool_addition", tool={"type": "tool_definition", "definition": {"type": "web_search_20250305"}}),
        "messages[0].content[0].tool.definition.type",
    ),
    ("messages", tool("web_search_20250305", name="web_search"), "tools[0].type"),
    ("messages", tool("code_execution_20250825", name="code_execution"), "tools[0].type"),
    ("messages", {"mcp_servers": [{"type": "url", "url": "https://evil.example"}]}, "mcp_servers"),
    # Addresses that only the provider reaches.
    ("chat", image("https://127.0.0.1/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://localhost/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://LOCALHOST./x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://169.254.169.254/latest/meta-data/"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[fe80::1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[::1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[::ffff:127.0.0.1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[64:ff9b::7f00:1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[64:ff9b:1::7f00:1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[::127.0.0.1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[fec0::1]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://192.0.0.192/latest/"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://localhost.localdomain/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://[2002:7f00:1::]/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://2130706433/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://0x7f.1/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://127。0。0。1/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://ⓛocalhost/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://10.1.2.3/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://metadata.google.internal/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://redis/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://127.0.0.1.nip.io/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://app-10-0-0-1.nip.io/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://7f000001.nip.io/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://--1.sslip.io/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://localtest.me/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://a.192.168.1.1.example.org/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://ip-172-31-0-9.example.org/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://example.org@127.0.0.1/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("https://127.0.0.1\\@example.org/x"), "messages[0].content[0].image_url.url"),
    ("chat", image("http://example.org/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", image("file:///etc/passwd"), "messages[0].content[0].image_url.url"),
    ("chat", image("//127.0.0.1/x.png"), "messages[0].content[0].image_url.url"),
    ("chat", part(type="image_url", image_url="https://127.0.0.1/x.png"), "messages[0].content[0].image_url"),
    ("chat", part(type="image_url", image_url=["https://127.0.0.1/x"]), "messages[0].content[0].image_url[0]"),
    ("chat", part(type="image_url", url="https://127.0.0.1/x"), "messages[0].content[0].url"),
    ("chat", part(type="image_url", imageUrl={"url": "https://127.0.0.1/x"}), "messages[0].content[0].imageUrl.url"),
    ("chat", part(type="image", image="https://127.0.0.1/x"), "messages[0].content[0].image"),
    ("chat", part(type="video", video=["https://127.0.0.1/x"]), "messages[0].content[0].video[0]"),
    ("chat", part(type="document_url", document_url="https://127.0.0.1/x"), "messages[0].content[0].document_url"),
    (
        "chat",
        part(type="input_audio", input_audio={"data": "http://127.0.0.1/x", "format": "wav"}),
        "messages[0].content[0].input_audio.data",
    ),
    ("chat", part(type="x", image_url={"url": "https://127.0.0.1/x"}), "messages[0].content[0].image_url.url"),
    ("chat", part(type="video_url", video_url={"url": "https://127.0.0.1/x"}), "messages[0].content[0].video_url.url"),
    ("chat", part(type="audio_url", audio_url={"url": "https://10.0.0.1/x"}), "messages[0].content[0].audio_url.url"),
    ("chat", part(type="file", file={"file_data": "https://10.0.0.1/x"}), "messages[0].content[0].file.file_data"),
    (
        "responses",
        item(role="user", content=[{"type": "input_image", "image_url": "https://127.0.0.1/x"}]),
        "input[0].content[0].image_url",
    ),
    (
        "responses",
        item(role="user", content=[{"type": "input_file", "file_url": "https://169.254.169.254/"}]),
        "input[0].content[0].file_url",
    ),
    (
        "responses",
        item(type="computer_call_output", output={"type": "computer_screenshot", "image_url": "https://10.0.0.1/x"}),
        "input[0].output.image_url",
    ),
    (
        "messages",
        part(type="image", source={"type": "url", "url": "https://127.0.0.1/x"}),
        "messages[0].content[0].source.url",
    ),
    (
        "messages",
        part(type="tool_result", content=[{"type": "document", "source": {"type": "url", "url": "https://[::1]/"}}]),
        "messages[0].content[0].content[0].source.url",
    ),
]


@pytest.mark.parametrize(("api", "fields", "field"), HOSTILE, ids=lambda value: str(value)[:60])
async def test_a_hostile_request_reaches_no_provider(
    server: ModelServer, api: ApiName, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await ask(provider_of(server, api), api, QUESTIONS[api] | fields)
    assert refused.value.message.startswith(f"{field}: ")
    assert server.connections == 0


#: The same wishes in a request's own settings: fields of the provider's own go through the same check.
EXTRAS: list[tuple[Wire, dict[str, object]]] = [
    *((wire, {"models": ["o3-pro"]}) for wire in (CHAT, RESPONSES, ANTHROPIC)),
    *((wire, {"api_base": "https://evil.example"}) for wire in (CHAT, RESPONSES, ANTHROPIC)),
    *((wire, {"aws_secret_access_key": "x"}) for wire in (CHAT, RESPONSES, ANTHROPIC)),
    *((wire, {"tools": [{"type": "web_search"}]}) for wire in (CHAT, RESPONSES, ANTHROPIC)),
    (CHAT, {"web_search_options": {}}),
    (RESPONSES, {"previous_response_id": "resp_1"}),
    (RESPONSES, {"instructions": "obey"}),
    (ANTHROPIC, {"mcp_servers": []}),
    (ANTHROPIC, {"container": "c"}),
]


@pytest.mark.parametrize(("wire", "extra"), EXTRAS, ids=lambda value: getattr(value, "name", str(value)[:40]))
async def test_an_extra_body_is_no_way_round_it(server: ModelServer, wire: Wire, extra: dict[str, object]) -> None:
    request = InvokeRequest.model_validate({"question": "q", "settings": {"extraBody": extra}})
    provider = wire.provider(server.url)
    with pytest.raises(ProviderFailure) as refused:
        await provider.answer(request, timeout_seconds=10)
    await provider.close()
    assert (refused.value.billing, server.connections) == (Billing.UNBILLED, 0)
    assert refused.value.fault.message.startswith("settings.extraBody.")


@pytest.mark.parametrize("field", list(QUESTIONS["chat"] | {"api_key": 0}))
async def test_a_name_that_stands_twice_is_refused_before_it_is_a_request(field: str) -> None:
    with pytest.raises(BadRequest):
        parse_json_object(f'{{"{field}": 1, "x": {{}}, "{field}": 2}}'.encode())


@pytest.mark.parametrize(
    ("api", "allow", "fields"),
    [
        ("chat", "web_search", {"web_search_options": {}}),
        ("responses", "web_search", tool("web_search_2025_08_26")),
        ("responses", "code_interpreter", tool("code_interpreter", container={"type": "auto"})),
        ("responses", "mcp", tool("mcp", server_label="x", server_url="https://example.org/mcp", authorization="t")),
        ("responses", "mcp", item(type="mcp_approval_response", approval_request_id="a", approve=True)),
        ("responses", "mcp", {"tool_choice": {"type": "mcp", "server_label": "x"}}),
        ("responses", "programmatic_tool_calling", tool("custom", name="f", allowed_callers=["programmatic"])),
        ("responses", "model", {"moderation": {"model": "omni-moderation-latest"}}),
        ("completions", "prompt_embeds", {"prompt_embeds": "gASV"}),
        ("chat", "web_search", tool("web_search")),
        # What the tool works with, and what earlier answers say of it.
        ("responses", "file_search", tool("file_search", vector_store_ids=["vs_1"])),
        ("responses", "file_search", item(type="file_search_call", id="fs_1", queries=["q"])),
        ("responses", "file_search", item(type="file_search_call", id="fs_1", results=[{"file_id": "f"}])),
        ("responses", "file_search", said({"type": "file_citation", "file_id": "f", "index": 1})),
        ("responses", "code_interpreter", item(type="code_interpreter_call", id="ci_1", container_id="cntr_1")),
        ("responses", "code_interpreter", said({"type": "container_file_citation", "container_id": "c"})),
    ],
)  # fmt: skip
async def test_a_tool_that_the_target_allows_reaches_the_provider(
    server: ModelServer, api: ApiName, allow: str, fields: dict[str, object]
) -> None:
    server.set_responses(ScriptedResponse(body=(RESPONSES if api == "responses" else CHAT).answer("Fine.")))
    await ask(provider_of(server, api, allow=[allow]), api, QUESTIONS[api] | fields)
    assert fields.items() <= server.requests[0].body.items()
    with pytest.raises(BadRequest):
        await ask(provider_of(server, api, allow=["another"]), api, QUESTIONS[api] | fields)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}, "guided_json": {"api_key": {}}, "top_k": 5},
        {"structured_outputs": {"json": {"properties": {"file_id": {"type": "string"}, "tools": {"type": "array"}}}}},
        part(type="input_audio", input_audio={"data": "UklGRg==", "format": "wav"}),
        {"messages": [{"role": "user", "content": "q"}], "stop_token_ids": [1], "eos_token_id": 2},
        {"metadata": {"api_key": "a word", "file_id": "another"}, "user": "u", "seed": None},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"file_id": {"type": "string"}}}}]},
        image("https://example.org/a.png?next=https://127.0.0.1/"),
        image("https://v1-1-1-1.cdn.example.org/a.png"),
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"model": {}, "apiKey": {}}}}]},
        part(type="text", text="the model of api_key"),
        image("https://xn--mnchen-3ya.de/a.png"),
        image("https://münchen.de/a.png"),
        image("https://1.1.1.1/a.png"),
        {"messages": [{"role": "user", "content": "see file:///etc/passwd, https://127.0.0.1/ and api_key"}]},
        {"background": False},
    ],
)
async def test_what_only_looks_hostile_is_carried(server: ModelServer, fields: dict[str, object]) -> None:
    await ask(provider_of(server, "chat"), "chat", QUESTIONS["chat"] | fields)
    assert fields.items() <= server.requests[0].body.items()


async def test_the_source_of_a_search_result_is_a_text_that_nobody_fetches(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=ANTHROPIC.answer("Fine.")))
    result = part(
        type="search_result", source="https://10.0.0.1/wiki", title="t", content=[{"type": "text", "text": "x"}]
    )
    await ask(provider_of(server, "messages"), "messages", QUESTIONS["messages"] | result)
    assert result.items() <= server.requests[0].body.items()


@pytest.mark.parametrize(
    ("image_urls", "url", "is_taken"),
    [
        ("any", "https://127.0.0.1/x.png", True),
        ("any", "http://minio:9000/x.png", True),
        ("refuse", "https://example.org/x.png", False),
        ("refuse", "data:image/png;base64,AAAA", True),
    ],
)
async def test_the_target_says_which_urls_its_provider_gets(
    server: ModelServer, image_urls: str, url: str, is_taken: bool
) -> None:
    provider = provider_of(server, "chat", image_urls=image_urls)
    if is_taken:
        await ask(provider, "chat", image(url))
    else:
        with pytest.raises(BadRequest):
            await ask(provider, "chat", image(url))
    assert len(server.requests) == is_taken


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (tool("code_interpreter", container="cntr_1"), "tools[0].container"),
        (tool("code_interpreter", container={"type": "auto", "file_ids": ["f"]}), "tools[0].container.file_ids"),
        (tool("shell", environment={"type": "container_reference", "container_id": "c"}),
         "tools[0].environment.container_id"),
        (tool("shell", environment={"type": "local", "skills": [{"type": "skill_reference", "skill_id": "s"}]}),
         "tools[0].environment.skills[0].skill_id"),
        (tool("mcp", server_label="x", connector_id="connector_gmail"), "tools[0].connector_id"),
        (tool("mcp", server_label="x", server_url="https://10.0.0.1/mcp"), "tools[0].server_url"),
        (tool("code_interpreter", vector_store_ids=["vs_1"]), "tools[0].vector_store_ids"),
        (item(type="code_interpreter_call", id="ci_1", file_id="f"), "input[0].file_id"),
        (item(type="file_search_call", id="fs_1", results=[{"type": "input_file", "file_id": "f"}]),
         "input[0].results[0].file_id"),
        (item(role="user", content=[{"type": "input_file", "file_id": "f"}]), "input[0].content[0].file_id"),
    ],
)  # fmt: skip
async def test_a_tool_that_is_allowed_uses_nothing_else_that_is_stored(
    server: ModelServer, fields: dict[str, object], field: str
) -> None:
    provider = provider_of(server, "responses", allow=["code_interpreter", "shell", "mcp", "file_search"])
    with pytest.raises(BadRequest) as refused:
        await ask(provider, "responses", QUESTIONS["responses"] | fields)
    assert refused.value.message.startswith(f"{field}: ")
    assert server.connections == 0


async def test_nothing_is_stored_at_the_provider(server: ModelServer) -> None:
    await ask(provider_of(server, "chat"), "chat", QUESTIONS["chat"] | {"store": True})
    server.set_responses(ScriptedResponse(body=RESPONSES.answer("Fine.")))
    for store in (True, False, None):
        await ask(provider_of(server, "responses"), "responses", QUESTIONS["responses"] | {"store": store})
    assert [json.loads(request.raw).get("store") for request in server.requests] == [None, False, False, False]


async def test_a_misspelled_field_is_refused_at_the_vendors_own_host(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(provider_of(server, "chat"), "chat", QUESTIONS["chat"] | {"temprature": 0})
    assert server.requests[0].body["temprature"] == 0
    monkeypatch.setattr(OpenAITarget, "is_vendors_host", property(lambda _: True))
    with pytest.raises(UnsupportedParameter, match="'temperature'") as refused:
        await ask(provider_of(server, "chat"), "chat", QUESTIONS["chat"] | {"temprature": 0})
    assert refused.value.parameter == "temprature"
    assert len(server.requests) == 1


@pytest.mark.parametrize("wire", [CHAT, RESPONSES, ANTHROPIC], ids=lambda wire: wire.name)
async def test_an_extra_body_has_no_other_fields_than_the_vendors(
    server: ModelServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in (OpenAITarget, AnthropicTarget):
        monkeypatch.setattr(target, "is_vendors_host", property(lambda _: True))
    request = InvokeRequest.model_validate({"question": "q", "settings": {"extraBody": {"temprature": 0}}})
    provider = wire.provider(server.url)
    with pytest.raises(ProviderFailure, match="'temperature'") as refused:
        await provider.answer(request, timeout_seconds=10)
    await provider.close()
    assert (refused.value.billing, server.connections) == (Billing.UNBILLED, 0)
