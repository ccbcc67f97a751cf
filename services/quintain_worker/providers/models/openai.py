"""Models behind the OpenAI API or a compatible server. Needs ``quintain[openai]``."""

from __future__ import annotations

from urllib.parse import urlsplit

from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from quintain.config import OpenAITarget
from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.factory import ProviderContext
from quintain_worker.providers.models.capabilities import ApiCapabilities, RequestFields, fields_of_same_name
from quintain_worker.providers.models.endpoints import EndpointProvider
from quintain_worker.providers.models.provider import PLACEHOLDER_API_KEY, VERBATIM_PROFILE, ModelProvider, http_client
from quintain_worker.providers.models.tools import FunctionTool, ToolSettings
from quintain_worker.providers.settings import UnsupportedValue, Writer, no_fields

#: Given explicitly, so that no environment variable of the library changes it.
_BASE_URL = "https://api.openai.com/v1"

#: The hosts of OpenAI's own API. It requires ``max_completion_tokens``, where other servers know only ``max_tokens``,
#: and lacks some settings that other servers have.
_OPENAI_HOSTS = (".openai.com", ".azure.com")


def openai_provider(name: str, target: OpenAITarget, _context: ProviderContext) -> EndpointProvider:
    """Create the OpenAI provider of this target. Raises `ConfigError` for settings that its API lacks."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    base_url = target.base_url or _BASE_URL
    client = http_client(target.max_concurrency, base_url)
    sdk = AsyncOpenAI(api_key=key or PLACEHOLDER_API_KEY, base_url=base_url, http_client=client, max_retries=0)
    conversations = ModelProvider(
        name, target, _model(target, OpenAIProvider(openai_client=sdk)), client, capabilities_of(target)
    )
    return EndpointProvider(conversations, target, sdk)


def capabilities_of(target: OpenAITarget) -> ApiCapabilities:
    """Return what the API of this target supports: OpenAI's own, or that of a compatible server."""
    if target.api == "responses":
        return _RESPONSES
    return _CHAT if (urlsplit(target.base_url or _BASE_URL).hostname or "").endswith(_OPENAI_HOSTS) else _COMPATIBLE


def _model(target: OpenAITarget, provider: OpenAIProvider) -> Model:
    profile = OpenAIModelProfile(
        # Without this profile the library would send some models' system messages as the user's.
        openai_supports_reasoning=False,
        openai_supports_encrypted_reasoning_content=False,
        openai_responses_supports_reasoning_context=False,
        openai_system_prompt_role="system",
    )
    kind = OpenAIChatModel if target.api == "chat" else OpenAIResponsesModel
    return kind(target.model, provider=provider, profile=merge_profile(profile, VERBATIM_PROFILE))


def _chat_tool_fields(tools: ToolSettings) -> RequestFields:
    body: RequestFields = {"tools": list(tools.raw_tools)}
    return body if tools.raw_choice is None else {**body, "tool_choice": tools.raw_choice}


def _stop_fields(stop: str | list[str]) -> RequestFields:
    return {"stop": [stop] if isinstance(stop, str) else list(stop)}


def _modality_fields(modalities: list[str]) -> RequestFields:
    if modalities != ["text"]:
        raise UnsupportedValue("answers are text only")
    return {"modalities": ["text"]}


def _responses_tool_fields(tools: ToolSettings) -> RequestFields:
    body: RequestFields = {"tools": [_responses_tool_definition(function) for function in tools.functions]}
    if tools.required_function is not None:
        return {**body, "tool_choice": {"type": "function", "name": tools.required_function}}
    return body if tools.choice_mode is None else {**body, "tool_choice": tools.choice_mode}


def _responses_tool_definition(function: FunctionTool) -> JsonObject:
    # Always set: the Responses API is strict by default, while in the request's format the default is not strict.
    tool: JsonObject = {
        "type": "function",
        "name": function.name,
        "parameters": function.parameters_schema,
        "strict": bool(function.strict),
    }
    return tool if function.description is None else {**tool, "description": function.description}


def _responses_format_fields(response_format: JsonObject) -> RequestFields:
    format_type = response_format.get("type")
    if format_type in ("text", "json_object"):
        return {"text": {"format": response_format}}
    schema = response_format.get("json_schema")
    if format_type != "json_schema" or not isinstance(schema, dict):
        raise UnsupportedValue('write {"type": "json_schema", "json_schema": {"name": …, "schema": …}}')
    return {"text": {"format": {**schema, "type": "json_schema"}}}


def _logprobs_fields(logprobs: bool) -> RequestFields:  # noqa: FBT001 -- a writer gets the setting's value
    return {"include": ["message.output_text.logprobs"]} if logprobs else {}


#: Written by ``write_tools``, and by `settings_of`.
_WRITTEN_ELSEWHERE: dict[str, Writer] = dict.fromkeys(("tools", "tool_choice", "extra_body"), no_fields)

_CHAT_WRITERS: dict[str, Writer] = {
    **fields_of_same_name("temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias", "seed"),
    **fields_of_same_name("logprobs", "top_logprobs", "reasoning_effort", "verbosity", "response_format"),
    **fields_of_same_name("parallel_tool_calls"),
    **_WRITTEN_ELSEWHERE,
    "stop": _stop_fields,
    "modalities": _modality_fields,
}

_CHAT = ApiCapabilities(
    provider="openai",
    writers={**_CHAT_WRITERS, "max_tokens": lambda limit: {"max_completion_tokens": limit}},
    write_tools=_chat_tool_fields,
)

#: vLLM, Ollama, DeepSeek, LiteLLM, OpenRouter and the like: which of the settings they honour is theirs to say.
_COMPATIBLE = ApiCapabilities(
    provider="openai",
    writers={
        **_CHAT_WRITERS,
        **fields_of_same_name("max_tokens", "top_k", "min_p", "repetition_penalty", "thinking"),
    },
    write_tools=_chat_tool_fields,
)

_RESPONSES = ApiCapabilities(
    provider="openai (api: responses)",
    writers={
        **fields_of_same_name("temperature", "top_p", "top_logprobs", "parallel_tool_calls"),
        **_WRITTEN_ELSEWHERE,
        "max_tokens": lambda limit: {"max_output_tokens": limit},
        "logprobs": _logprobs_fields,
        "reasoning_effort": lambda effort: {"reasoning": {"effort": effort}},
        "verbosity": lambda verbosity: {"text": {"verbosity": verbosity}},
        "response_format": _responses_format_fields,
    },
    write_tools=_responses_tool_fields,
)
