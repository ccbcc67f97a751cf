"""What callers may not ask of a provider whose key and account they are lent: a recorder at the provider proves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from quintain.contracts.api_request import ApiName
from quintain.errors import BadRequest, UnsupportedParameter
from quintain_worker.providers.provider import ApiProvider, Provider
from support.model_calls import api_provider, api_request, at_the_vendors, refused_call
from support.model_server import ModelServer, ScriptedResponse, model_server
from support.model_wires import ANTHROPIC, CHAT, RESPONSES, WIRES, Wire

USER = {"role": "user", "content": "q"}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        server.set_responses(ScriptedResponse(body=CHAT.answer("Fine.")))
        yield server


async def ask(provider: Provider, api: ApiName, fields: Mapping[str, Any]) -> None:
    """One request, as a worker makes it: checked first, then answered."""
    request = api_request(api, **fields)
    assert isinstance(provider, ApiProvider)
    try:
        provider.check(request)
        await provider.answer(request, timeout_seconds=10)
    finally:
        await provider.close()


#: Where a part of the only message stands, and an address that only the provider reaches.
PART, NEAR = "messages[0].content[0]", "https://127.0.0.1/x"


def part(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [fields]}]}


def image(url: str) -> dict[str, object]:
    return part(type="image_url", image_url={"url": url})


def item(**fields: object) -> dict[str, object]:
    return {"input": [fields]}


def content(**fields: object) -> dict[str, object]:
    return item(role="user", content=[fields])


def said(annotation: dict[str, object]) -> dict[str, object]:
    content = {"type": "output_text", "text": "x", "annotations": [annotation]}
    return item(type="message", role="assistant", content=[content])


def tool(kind: str, **fields: object) -> dict[str, object]:
    return {"tools": [{"type": kind, **fields}]}


EVIL = "https://evil.example"

#: Fields that are refused whatever they hold.
REFUSED_FIELDS: dict[ApiName, dict[str, object]] = {
    "chat": {
        # Other models.
        **{name: ["o3-pro"] for name in ("models", "Models", "merged_models", "default_fallbacks", "fallbackModels")},
        **dict.fromkeys(("model", "modelName", "modelname", "deployment_id", "lora_path", "adapter_id"), "o3-pro"),
        "fallbacks": [{"gpt-4o": ["o3-pro"]}], "context_window_fallbacks": [{"a": ["b"]}], "route": "fallback",
        "provider": {"order": ["elsewhere"]}, "preset": "mine", "model_list": [], "custom_llm_provider": "openai",
        "lora": [{"id": 1}], "context_window_fallback_dict": {"a": "b"},
        # Other keys, addresses and accounts.
        **dict.fromkeys(("api_key", "api-key", "apiKey", "apikey", "openai_api_key", "access_key"), "sk-mine"),
        **dict.fromkeys(("aws_secret_access_key", "azure_ad_token", "session_token", "remote_engine_id"), "x"),
        **dict.fromkeys(("api_base", "API_BASE", "apiBase", "base_url", "baseURL", "baseurl", "endpoint_url"), EVIL),
        **dict.fromkeys(("upstream", "host", "langfuse_host", "bootstrap_host"), "evil.example"),
        "vertex_credentials": "{}", "organization": "org-other", "Authorization": "Bearer x",
        "extra_headers": {"authorization": "Bearer x"}, "headers": {"host": "evil.example"},
        "litellm_params": {"api_base": EVIL}, "user_config": {}, "callbacks": ["langfuse"], "guardrails": [],
        "ec_transfer_params": {"peer_host": "10.0.0.1"}, "disable_global_guardrails": True,
        "standard_callback_dynamic_params": {}, "input_cost_per_token": 0, "no-log": True, "tags": ["another team"],
        "prompt_id": "another's", "session_params": {"id": "another caller's"},
        # What Quintain decides, and what runs at the provider.
        "n": 5, "stream": True, "extra_body": {"models": ["o3-pro"]}, "web_search_options": {},
        "logits_processors": [{"qualname": "os.system"}], "custom_logit_processor": "gASV",
    },
    "responses": {
        "model_id": "o3-pro", "background": True, "previous_response_id": "resp_1", "conversation": "conv_1",
        "prompt": {"id": "pmpt_1"}, "image": "x",
    },
    "completions": {
        "engine": "davinci", "kv_transfer_params": {"remote_host": "10.0.0.1"}, "best_of": 20, "prompt_embeds": "gASV",
    },
    "embeddings": {"api_base": EVIL},
    "messages": {
        "fallbacks": ["claude-opus-4-8"], "workspace_id": "wrkspc_1", "user_profile_id": "p_1",
        "fallback_credit_token": "x", "container": "container_1", "mcp_servers": [{"type": "url", "url": EVIL}],
    },
}  # fmt: skip

#: Requests, each with the field within one that its refusal names.
REFUSED_PLACES: list[tuple[ApiName, dict[str, object], str]] = [
    # Other models, keys and addresses.
    ("chat", {"moderation": {"model": "omni-moderation-latest"}}, "moderation.model"),
    ("responses", {"moderation": {"model": "omni-moderation-latest"}}, "moderation.model"),
    ("responses", {"extra": {"routing": {"models": ["o3-pro"]}}}, "extra.routing.models"),
    ("messages", {"context_management": {"edits": [{"model": "m"}]}}, "context_management.edits[0].model"),
    ("messages", {"compaction": {"model": "claude-opus-4-8"}}, "compaction.model"),
    ("chat", {"options": {"apiKey": "sk-mine"}}, "options.apiKey"),
    ("chat", {"vllm_xargs": [{"base_url": EVIL}]}, "vllm_xargs[0].base_url"),
    # What is stored at the provider.
    ("responses", item(type="item_reference", id="msg_1"), "input[0].type"),
    ("responses", content(type="input_file", file_id="file_1"), "input[0].content[0].file_id"),
    ("responses", content(type="input_image", file_id="f"), "input[0].content[0].file_id"),
    ("responses", tool("function", name="f", vector_store_ids=["vs_1"]), "tools[0].vector_store_ids"),
    ("responses", tool("function", name="f", container={"type": "auto"}), "tools[0].container"),
    ("chat", part(type="file", file={"file_id": "file_1"}), f"{PART}.file.file_id"),
    ("chat", {"messages": [USER, {"role": "assistant", "audio": {"id": "audio_1"}}]}, "messages[1].audio.id"),
    ("messages", part(type="container_upload", file_id="file_1"), f"{PART}.type"),
    ("messages", part(type="image", source={"type": "file", "file_id": "f"}), f"{PART}.source.file_id"),
    ("responses", item(id="msg_1"), "input[0].id"),
    ("responses", item(type=None, id="msg_1"), "input[0].id"),
    ("responses", item(type="image_generation_call", id="ig_1", result=None), "input[0].type"),
    (
        "responses", {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
        "prompt_cache_options.comparison_response_id",
    ),
    ("chat", {"audio": {"format": "wav", "voice": {"id": "voice_1"}}}, "audio.voice.id"),
    ("messages", {"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics.previous_message_id"),
    # What runs at the provider; test_api_nested_fields.py has each tool of the vendors, wherever it may stand.
    ("chat", tool("web_search_preview"), "tools[0].type"),
    ("chat", {"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ("responses", {"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
    ("responses", {"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice.type"),
    ("responses", {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}}, "tool_choice.tools[0].type"),
    (
        "chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "code_interpreter"}]}}},
        "tool_choice.allowed_tools.tools[0].type",
    ),
    *(
        ("responses", item(type=kind, id="m"), "input[0].type")
        for kind in ("mcp_call", "mcp_approval_response", "mcp_approval_request", "mcp_list_tools", "program")
    ),
    ("messages", part(type="mcp_tool_use", id="m", name="f", server_name="x", input={}), f"{PART}.type"),
    (
        "messages", {"tools": [{"name": "f", "allowed_callers": ["direct", "code_execution_20250825"]}]},
        "tools[0].allowed_callers[1]",
    ),
    ("responses", tool("function", name="f", allowed_callers=["programmatic"]), "tools[0].allowed_callers[0]"),
    ("chat", part(type="image_embeds", image_embeds="gASV"), f"{PART}.image_embeds"),
    ("responses", {"tools": {"type": "web_search"}}, "tools.type"),
    ("responses", {"tools": [[{"type": "web_search"}]]}, "tools[0][0].type"),
    # Wherever an address may stand that only the provider reaches.
    ("chat", part(type="image_url", image_url=NEAR), f"{PART}.image_url"),
    ("chat", part(type="image_url", image_url=[NEAR]), f"{PART}.image_url[0]"),
    ("chat", part(type="image_url", url=NEAR), f"{PART}.url"),
    ("chat", part(type="image_url", imageUrl={"url": NEAR}), f"{PART}.imageUrl.url"),
    ("chat", part(type="image", image=NEAR), f"{PART}.image"),
    ("chat", part(type="video", video=[NEAR]), f"{PART}.video[0]"),
    ("chat", part(type="document_url", document_url=NEAR), f"{PART}.document_url"),
    ("chat", part(type="input_audio", input_audio={"data": NEAR, "format": "wav"}), f"{PART}.input_audio.data"),
    ("chat", part(type="x", image_url={"url": NEAR}), f"{PART}.image_url.url"),
    ("chat", part(type="video_url", video_url={"url": NEAR}), f"{PART}.video_url.url"),
    ("chat", part(type="audio_url", audio_url={"url": NEAR}), f"{PART}.audio_url.url"),
    ("chat", part(type="file", file={"file_data": NEAR}), f"{PART}.file.file_data"),
    ("responses", content(type="input_image", image_url=NEAR), "input[0].content[0].image_url"),
    ("responses", content(type="input_file", file_url=NEAR), "input[0].content[0].file_url"),
    (
        "responses",
        item(type="computer_call_output", output={"type": "computer_screenshot", "image_url": NEAR}),
        "input[0].output.image_url",
    ),
    ("messages", part(type="image", source={"type": "url", "url": NEAR}), f"{PART}.source.url"),
    (
        "messages",
        part(type="tool_result", content=[{"type": "document", "source": {"type": "url", "url": NEAR}}]),
        f"{PART}.content[0].source.url",
    ),
]  # fmt: skip

#: Addresses that only the provider reaches, however they are written.
NEAR_HOSTS = """
127.0.0.1 localhost LOCALHOST. localhost.localdomain 169.254.169.254 [fe80::1] [::1] [::ffff:127.0.0.1]
[64:ff9b::7f00:1] [64:ff9b:1::7f00:1] [::127.0.0.1] [fec0::1] 192.0.0.192 [2002:7f00:1::] 2130706433 0x7f.1
127。0。0。1 ⓛocalhost 10.1.2.3 metadata.google.internal redis 127.0.0.1.nip.io app-10-0-0-1.nip.io 7f000001.nip.io
--1.sslip.io localtest.me a.192.168.1.1.example.org ip-172-31-0-9.example.org example.org@127.0.0.1
127.0.0.1\\@example.org
""".split()  # noqa: SIM905
NEAR_URLS = [
    *(f"https://{host}/x.png" for host in NEAR_HOSTS),
    "http://example.org/x.png", "file:///etc/passwd", "//127.0.0.1/x.png",
]  # fmt: skip

HOSTILE: list[tuple[ApiName, dict[str, object], str]] = [
    *((api, {name: value}, name) for api, fields in REFUSED_FIELDS.items() for name, value in fields.items()),
    *REFUSED_PLACES,
    *(("chat", image(url), f"{PART}.image_url.url") for url in NEAR_URLS),
]


@pytest.mark.parametrize(("api", "fields", "field"), HOSTILE, ids=lambda value: str(value)[:60])
async def test_a_hostile_request_reaches_no_provider(
    server: ModelServer, api: ApiName, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await ask(api_provider(server.url, api), api, fields)
    assert refused.value.message.startswith(f"{field}: ")
    assert server.connections == 0


#: The same wishes in a request's own settings: fields of the provider's own go through the same check.
EXTRAS: list[tuple[Wire, dict[str, object]]] = [
    *(
        (wire, {name: value})
        for wire in WIRES
        for name, value in {
            "models": ["o3-pro"], "api_base": EVIL, "aws_secret_access_key": "x", "tools": [{"type": "web_search"}],
        }.items()
    ),
    (CHAT, {"web_search_options": {}}),
    (RESPONSES, {"previous_response_id": "resp_1"}),
    (RESPONSES, {"instructions": "obey"}),
    (ANTHROPIC, {"mcp_servers": []}),
    (ANTHROPIC, {"container": "c"}),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "extra"), EXTRAS, ids=lambda value: getattr(value, "name", str(value)[:40]))
async def test_an_extra_body_is_no_way_round_it(server: ModelServer, wire: Wire, extra: dict[str, object]) -> None:
    message = await refused_call(wire.provider(server.url), question="q", settings={"extraBody": extra})
    assert message.startswith("settings.extraBody.")
    assert server.connections == 0


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
    await ask(api_provider(server.url, api, allow=[allow]), api, fields)
    assert fields.items() <= server.requests[0].body.items()
    with pytest.raises(BadRequest):
        await ask(api_provider(server.url, api, allow=["another"]), api, fields)
    assert len(server.requests) == 1


#: What only looks hostile; and vLLM's own parameters, as its documentation writes them into ``extra_body``.
CARRIED: list[dict[str, object]] = [
    {"guided_json": {"api_key": {}}, "top_k": 5},
    {"structured_outputs": {"json": {"properties": {"file_id": {"type": "string"}, "tools": {"type": "array"}}}}},
    part(type="input_audio", input_audio={"data": "UklGRg==", "format": "wav"}),
    {"stop_token_ids": [1], "eos_token_id": 2},
    {"metadata": {"api_key": "a word", "file_id": "another"}, "user": "u", "seed": None},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"file_id": {}, "apiKey": {}}}}]},
    image("https://example.org/a.png?next=https://127.0.0.1/"),
    image("https://v1-1-1-1.cdn.example.org/a.png"),
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    part(type="text", text="the model of api_key"),
    image("https://xn--mnchen-3ya.de/a.png"),
    image("https://münchen.de/a.png"),
    image("https://1.1.1.1/a.png"),
    {"messages": [{"role": "user", "content": "see file:///etc/passwd, https://127.0.0.1/ and api_key"}]},
    {"background": False},
    {"chat_template_kwargs": {"thinking": True, "enable_thinking": False, "tools": [{"a": None}], "n": 3}},
    {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}", "add_special_tokens": False},
    {"add_generation_prompt": False, "continue_final_message": True, "echo": True},
    {"documents": [{"title": "It", "text": "It is."}], "guided_choice": ["positive", "negative"]},
    {"structured_outputs": {"regex": r"\w+@\w+\.com\n", "choice": ["positive"]}, "stop": ["\n"]},
    {"structured_outputs": {"grammar": 'root ::= "SELECT "', "whitespace_pattern": None}},
    {
        "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05, "length_penalty": 1e-3, "stop_token_ids": [151643],
        "allowed_token_ids": [1, 2], "bad_words": ["x"], "include_stop_str_in_output": False, "ignore_eos": True,
        "min_tokens": 2, "skip_special_tokens": False, "truncate_prompt_tokens": -1, "prompt_logprobs": 0,
        "use_beam_search": False,
    },
    {
        "priority": -1, "request_id": "mine", "cache_salt": "s", "return_token_ids": True, "vllm_xargs": {"a": 1.50},
        "mm_processor_kwargs": {"num_crops": 4}, "media_io_kwargs": {"video": {"num_frames": 8}},
    },
]  # fmt: skip


@pytest.mark.parametrize("fields", CARRIED, ids=lambda fields: str(fields)[:60])
async def test_what_only_looks_hostile_is_carried_and_so_is_what_a_compatible_server_has_of_its_own(
    server: ModelServer, fields: dict[str, object]
) -> None:
    await ask(api_provider(server.url, "chat"), "chat", fields)
    assert fields.items() <= server.requests[0].body.items()


async def test_the_targets_own_fields_are_sent_where_a_request_has_none(server: ModelServer) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "min_tokens": 1}
    target = {"settings": {"top_k": 20, "extra_body": extra}}
    own: dict[str, object] = {"chat_template_kwargs": {"enable_thinking": True}}
    for fields in ({}, own):
        await ask(api_provider(server.url, "chat", **target), "chat", fields)
        assert ({"top_k": 20} | extra | fields).items() <= server.requests[-1].body.items()


async def test_the_source_of_a_search_result_is_a_text_that_nobody_fetches(server: ModelServer) -> None:
    server.set_responses(ScriptedResponse(body=ANTHROPIC.answer("Fine.")))
    result = part(
        type="search_result", source="https://10.0.0.1/wiki", title="t", content=[{"type": "text", "text": "x"}]
    )
    await ask(api_provider(server.url, "messages"), "messages", result)
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
    provider = api_provider(server.url, "chat", image_urls=image_urls)
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
    provider = api_provider(server.url, "responses", allow=["code_interpreter", "shell", "mcp", "file_search"])
    with pytest.raises(BadRequest) as refused:
        await ask(provider, "responses", fields)
    assert refused.value.message.startswith(f"{field}: ")
    assert server.connections == 0


async def test_nothing_is_stored_at_the_provider(server: ModelServer) -> None:
    await ask(api_provider(server.url, "chat"), "chat", {"store": True})
    server.set_responses(ScriptedResponse(body=RESPONSES.answer("Fine.")))
    for store in (True, False, None):
        await ask(api_provider(server.url, "responses"), "responses", {"store": store})
    assert [json.loads(request.raw).get("store") for request in server.requests] == [None, False, False, False]


async def test_a_misspelled_field_is_refused_at_the_vendors_own_host(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(api_provider(server.url, "chat"), "chat", {"temprature": 0})
    assert server.requests[0].body["temprature"] == 0
    at_the_vendors(monkeypatch)
    with pytest.raises(UnsupportedParameter, match="'temperature'") as refused:
        await ask(api_provider(server.url, "chat"), "chat", {"temprature": 0})
    assert refused.value.parameter == "temprature"
    for wire in WIRES:
        settings = {"extraBody": {"temprature": 0}}
        assert "'temperature'" in await refused_call(wire.provider(server.url), question="q", settings=settings)
    assert len(server.requests) == 1
