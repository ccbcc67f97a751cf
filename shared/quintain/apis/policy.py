"""What a caller's request may ask of a provider: Quintain's key, address and account are lent to strangers. No I/O.

Refused by name: what Quintain decides itself, what names another model, address or key, what is stored at the provider,
and what runs there on Quintain's account, unless the target allows it. At the vendors' own hosts, a field that
their published lists do not have is refused too: a misspelled one must not cost a call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from quintain.apis.media import IMAGE_TYPES, check_data_url, check_url
from quintain.apis.translation import Json, invalid
from quintain.contracts.api_request import ApiName
from quintain.contracts.values import shorten
from quintain.errors import UnsupportedParameter

_DECIDED = "Quintain decides it"
_STORED = "it names what is stored at the provider, whose account is not yours; send the content itself"
_ELSEWHERE = "it names another model, address or key than the target's"

#: The fields of each API's requests, as the vendors publish them: those of their clients, and sampling settings that
#: Anthropic's older models take.
PUBLISHED_FIELDS: Mapping[ApiName, frozenset[str]] = {
    "chat": frozenset(
        {"audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
         "max_tokens", "messages", "metadata", "modalities", "model", "moderation", "n", "parallel_tool_calls",
         "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
         "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
         "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
         "web_search_options"}
    ),
    "responses": frozenset(
        {"access_programs", "background", "context_management", "conversation", "image", "include", "input",
         "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation",
         "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
         "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream",
         "stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"}
    ),
    "completions": frozenset(
        {"best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "model", "n",
         "presence_penalty", "prompt", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p",
         "user"}
    ),
    "embeddings": frozenset({"dimensions", "encoding_format", "input", "model", "user"}),
    "messages": frozenset(
        {"billing_policy", "cache_control", "compaction", "container", "context_management", "diagnostics",
         "fallback_credit_token", "fallbacks", "inference_geo", "max_tokens", "mcp_servers", "messages", "metadata",
         "model", "output_config", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature",
         "thinking", "thread", "tool_choice", "tools", "top_k", "top_p", "user_profile_id", "workspace_id"}
    ),
}  # fmt: skip

#: Fields of any API that are refused, with the reason. What an API itself is made of is not among its own.
REFUSED_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("background", "best_of", "n", "model", "stream", "stream_options", "extra_headers",
         "extra_query", "timeout", "max_retries", "num_retries", "billing_policy",
         "fallback_credit_token", "user_profile_id", "access_programs", "no_log"),
        _DECIDED,
    ),
    "extra_body": "its fields stand in the request itself, where OpenAI's client puts them",
    "unsupported": "the session or the target says it (`quintain session open --unsupported ignore`)",
    **dict.fromkeys(
        ("route", "router", "provider", "providers", "preset", "plugins", "engine", "deployment", "deployment_id",
         "custom_llm_provider", "api_type", "api_version", "endpoint", "region", "organization", "project", "headers",
         "user_config", "mock_response", "webhook", "workspace_id", "adapter", "adapters", "lora", "loras", "host",
         "hostname", "upstream", "backend", "tags"),
        _ELSEWHERE,
    ),
    **dict.fromkeys(
        ("previous_response_id", "conversation", "prompt", "container", "thread", "vector_store_ids", "file_ids",
         "file_id", "session_params", "prompt_id"),
        _STORED,
    ),
    # What one API's requests are made of means nothing in another one's.
    **dict.fromkeys(("input", "instructions", "messages", "system"), "this API has no such field"),
}  # fmt: skip

#: Values that ask a provider only to store what is asked: nothing is stored, and a call is made without them.
_ONLY_STORED: Mapping[ApiName, Mapping[str, object]] = {
    "chat": {"store": True},
    "responses": {"store": True},
    "messages": {"thread": {"type": "create"}},
}

#: What the requests of each API are made of, and may thus have.
_OWN_FIELDS: Mapping[ApiName, frozenset[str]] = {
    "chat": frozenset({"messages"}),
    "responses": frozenset({"input", "instructions"}),
    "completions": frozenset({"prompt"}),
    "embeddings": frozenset({"input"}),
    "messages": frozenset({"messages", "system"}),
}

#: Names that models, secrets and addresses have in requests to proxies, clouds and servers, and what stands in them.
_ELSEWHERE_NAMES = re.compile(
    r"^(aws|azure|vertex|watsonx|bedrock|litellm|langfuse|langsmith|gcs|lora|adapter|bootstrap|remote)_|"
    r"fallback|callback|guardrail|credential|secret|passw(or)?d|cost_per|_transfer_params$|"
    r"(^|_)models?(_?(id|name|list|alias|path|overrides?))?$|"
    r"(^|_)(api_?(key|base|token)|(base|endpoint)?_?ur[il]s?|(private|access|account|master)_key|"
    r"(access|auth|bearer|client|hf|id|refresh|sas|security|session)_token|prox(y|ies)|authorization)$"
)

#: Of these, without underscores, what has no other meaning at any depth of a request.
_ELSEWHERE_NESTED = frozenset({"apikey", "apibase", "apitoken", "apisecret", "baseurl", "models"})

#: Fields that let the provider do more than answer on its own side, or load code or tensors of the caller's → the name
#: by which a target may allow it.
_ALLOWABLE_FIELDS = {
    "web_search_options": "web_search",
    "mcp_servers": "mcp",
    "image": "image_generation",
    "logits_processors": "logits_processors",
    "custom_logit_processor": "custom_logit_processor",
}

#: The same at any depth. A tool that is allowed, a moderation, or an edit of the context may name a model of its own.
_ALLOWABLE_KEYS = frozenset({"model", "prompt_embeds", "image_embeds", "audio_embeds", "video_embeds"})

#: Types of tools whose calls the caller answers itself, and of choices that name none.
_CALLERS_TOOLS = re.compile(
    r"(function|custom|namespace|apply_patch|local_shell|computer|computer_use_preview|bash|text_editor|memory|"
    r"computer_toolset|browser_toolset|auto|any|none|tool|allowed_tools)(_\d{8})?"
)

#: Where tools stand in a request, at any depth: some are added in the middle of a conversation.
_TOOL_KEYS = frozenset({"tools", "definition", "tool_choice"})

#: Who may call a tool besides the model → the tool that the provider runs for it.
_CALLERS = {"programmatic": "programmatic_tool_calling"}

#: Keys of messages and parts that refer to what is stored at a provider.
_REFERENCES = frozenset(
    {"file_id", "file_ids", "vector_store_ids", "container", "container_id", "image_file", "connector_id", "skill_id",
     "tunnel_id", "previous_message_id", "comparison_response_id"}
)  # fmt: skip

#: What an allowed tool works with, and says of it in earlier answers: the type of an object → the tool, and the
#: references that may stand in it.
_REFERENCES_OF = {
    "file_search": ("file_search", frozenset({"vector_store_ids"})),
    "file_search_call": ("file_search", frozenset({"file_id"})),
    "file_citation": ("file_search", frozenset({"file_id"})),
    "code_interpreter_call": ("code_interpreter", frozenset({"container_id"})),
    "container_file_citation": ("code_interpreter", frozenset({"container_id", "file_id"})),
    "file_path": ("code_interpreter", frozenset({"file_id"})),
    "code_execution_output": ("code_execution", frozenset({"file_id"})),
    "bash_code_execution_output": ("code_execution", frozenset({"file_id"})),
}

#: Parts of a request that are a caller's own words or schemas, in which any key may stand.
_OPAQUE = frozenset(
    {"parameters", "input_schema", "output_schema", "input_examples", "schema", "arguments", "metadata",
     "chat_template_kwargs", "logit_bias", "svg_usage", "guided_json", "structured_outputs", "env", "attributes"}
)  # fmt: skip

#: Keys whose values are URLs that a provider fetches.
_URL_KEY = re.compile(r"(image|file|audio|video|document|server)_?ur[il]s?", re.IGNORECASE)

#: Types of parts with a medium, which they hold, or have a URL of, under one of these keys.
_MEDIA_TYPE = re.compile(r"url|(input_)?(image|video|audio|document|file)(_url)?")
_MEDIA_KEYS = frozenset({"url", "image", "video", "audio", "document", "file"})

#: Keys of content in base64, in place of which some servers take a URL.
_DATA_KEYS = frozenset({"data", "file_data"})
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)

#: Types of objects that refer to what is stored at a provider.
_STORED_TYPES = ("item_reference", "container_upload")

#: Types of objects with which a tool of the provider's own goes on, such as its calls and what they are allowed → the
#: tool.
_TOOLS_BY_TYPE = {
    **dict.fromkeys(
        ("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response", "mcp_tool_use"), "mcp"
    ),
    **dict.fromkeys(("program", "program_output"), "programmatic_tool_calling"),
    "file_search_call": "file_search",
}


class Policy(NamedTuple):
    """What a target lets its callers ask: at a vendor's own host or not, which tools, and which URLs of images."""

    is_vendor: bool = False
    allow: Collection[str] = ()
    image_urls: str = "pass"


def fields_without_effect(api: ApiName, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fields that have no effect here, and without which a call is made."""
    return tuple(name for name, value in _ONLY_STORED.get(api, {}).items() if body.get(name) == value)


def check_request(api: ApiName, body: Mapping[str, Any], policy: Policy, path: str = "") -> None:
    """Check a request of this API, or the part of one at this path. Raises `BadRequest`, which names the field."""
    without_effect = fields_without_effect(api, body)
    for name, value in body.items():
        if value is not None and value is not False and name not in without_effect:
            _check_field(api, path, name, policy)
    for field, key, value, owner in _nested(body, path):
        # A field that is switched off asks for nothing.
        if value is not None and value is not False and not _is_of_allowed_tool(owner, key, policy):
            _check_member(field, key, value, policy)
        if isinstance(value, dict):
            if key in _TOOL_KEYS:
                _check_tool(field, value, policy)
            _check_object(field, value, policy)


#: Published fields of which nothing is to be checked but what stands in them.
_FREE_FIELDS: Mapping[ApiName, Collection[str]] = {
    api: _OWN_FIELDS[api]
    | {
        name
        for name in names - REFUSED_FIELDS.keys() - _ALLOWABLE_FIELDS.keys()
        if _ELSEWHERE_NAMES.search(name) is None
    }
    for api, names in PUBLISHED_FIELDS.items()
}

#: Names of texts that mean nothing by themselves: most of what a request has.
_PLAIN_KEYS = frozenset({"role", "content", "text", "type", "name", "id"})

#: Where a word begins in a name that is written as ``apiKey``.
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _check_field(api: ApiName, path: str, name: str, policy: Policy) -> None:
    if not path and name in _FREE_FIELDS[api]:
        return
    if name in _ALLOWABLE_FIELDS and (name != "image" or api == "responses"):
        _check_allowed(f"{path}{name}", _ALLOWABLE_FIELDS[name], policy)
        return
    known = _CAMEL_HUMP.sub("_", name).lower().replace("-", "_")
    if known in REFUSED_FIELDS:
        raise invalid(f"{path}{name}", REFUSED_FIELDS[known])
    if _ELSEWHERE_NAMES.search(known):
        raise invalid(f"{path}{name}", _ELSEWHERE)
    if policy.is_vendor and name not in PUBLISHED_FIELDS[api]:
        nearest = get_close_matches(name, PUBLISHED_FIELDS[api], n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        fault = UnsupportedParameter(f"{path}{shorten(name)}: this API has no such field{hint}")
        fault.parameter = f"{path}{shorten(name)}"
        raise fault


def _check_member(field: str, key: str, value: object, policy: Policy) -> None:
    """Check what a name means wherever it stands."""
    # A container that a tool asks for is a new one.
    if key in _REFERENCES and not (key == "container" and isinstance(value, dict)):
        raise invalid(field, _STORED)
    if key in _ALLOWABLE_KEYS:
        _check_allowed(field, key, policy)
    elif key == "allowed_callers" and isinstance(value, str) and value != "direct":
        _check_allowed(field, _CALLERS.get(value, value), policy)
    elif (bare := key.lower().replace("_", "").replace("-", "")) in _ELSEWHERE_NESTED or bare.endswith("fallbacks"):
        raise invalid(field, _ELSEWHERE)


def _is_of_allowed_tool(owner: str, key: str, policy: Policy) -> bool:
    tool, references = _REFERENCES_OF.get(owner, ("", frozenset[str]()))
    return key in references and _is_allowed(tool, policy)


def _check_tool(field: str, tool: Json, policy: Policy) -> None:
    kind = str(tool.get("type") or "function")
    if _CALLERS_TOOLS.fullmatch(kind) is None:
        _check_allowed(f"{field}.type", kind, policy)
    elif tool.get("container") is not None:
        raise invalid(f"{field}.container", _STORED)


def _check_allowed(field: str, tool: str, policy: Policy) -> None:
    """Check that the target allows this; ``web_search`` allows each version of it, such as web_search_20260318."""
    if not _is_allowed(tool, policy):
        name = re.sub(r"(_preview)?(_\d{4}_?\d{2}_?\d{2})?$", "", tool)
        raise invalid(field, f"the provider runs or loads it itself; the target must say allow: [{shorten(name)}]")


def _is_allowed(tool: str, policy: Policy) -> bool:
    return any(tool == allowed or tool.startswith(f"{allowed}_") for allowed in policy.allow)


def _check_object(field: str, value: Json, policy: Policy) -> None:
    kind = value.get("type")
    if isinstance(kind, str) and kind in _TOOLS_BY_TYPE:
        _check_allowed(f"{field}.type", _TOOLS_BY_TYPE[kind], policy)
    if kind in _STORED_TYPES or (kind == "image_generation_call" and value.get("result") is None):
        raise invalid(f"{field}.type", _STORED)
    if kind is None and value.get("id") is not None and value.keys() <= {"type", "id"}:
        # Nothing but an id: of an item, a voice, an answer's audio.
        raise invalid(f"{field}.id", _STORED)
    is_media = isinstance(kind, str) and _MEDIA_TYPE.fullmatch(kind) is not None
    for key, member in value.items():
        is_url = _URL_KEY.fullmatch(key) is not None or (is_media and key == "url")
        if is_url or (is_media and key in _MEDIA_KEYS) or (key in _DATA_KEYS and kind != "text"):
            for place, url in _texts_of(f"{field}.{key}", member):
                if is_url or _URL.match(url):
                    _check_url(place, key, url, policy)


def _texts_of(field: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the texts that are written as such, in lists, or as ``{"url": …}``, with their places."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts_of(f"{field}[{index}]", item)
    elif isinstance(value, dict) and "url" in value:
        yield from _texts_of(f"{field}.url", value["url"])


def _check_url(field: str, key: str, url: str, policy: Policy) -> None:
    if url[:5].lower() != "data:":
        if policy.image_urls != "any":
            check_url(field, url, allows_urls=policy.image_urls != "refuse")
    elif key == "image_url":
        check_data_url(field, url, IMAGE_TYPES)


def _nested(body: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, Any, str]]:
    """Yield the path, the key and the value of everything in a request, and the type of the object that it is in.

    Items of a list have the list's key.
    """
    remaining: list[tuple[str, str, Any, str]] = [(f"{path}{name}", name, item, "") for name, item in body.items()]
    while remaining:
        field, key, value, owner = remaining.pop()
        if key in _OPAQUE:
            continue
        yield field, key, value, owner
        if isinstance(value, dict):
            kind = str(value.get("type") or owner)
            for name, member in value.items():
                # The ``input`` of a request is its messages; that of a tool's call is the model's words.
                if name != "input" and not (name in _PLAIN_KEYS and isinstance(member, str)):
                    remaining.append((f"{field}.{name}", name, member, kind))
        elif isinstance(value, list):
            remaining += [(f"{field}[{index}]", key, item, owner) for index, item in enumerate(value)]
