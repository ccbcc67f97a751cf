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
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.factory import ProviderContext
from quintain_worker.providers.models.capabilities import ApiCapabilities, RequestFields, SettingDefaults
from quintain_worker.providers.models.provider import PLACEHOLDER_API_KEY, VERBATIM_PROFILE, ModelProvider, http_client
from quintain_worker.providers.models.tools import FunctionTool, ToolSettings

#: Given explicitly, so that no environment variable of the library changes it.
_BASE_URL = "https://api.openai.com/v1"

#: Hosts that require ``max_completion_tokens``; other servers know only ``max_tokens``, and some ignore the other.
_MAX_COMPLETION_TOKENS_HOSTS = (".openai.com", ".azure.com")


def openai_provider(_name: str, target: OpenAITarget, _context: ProviderContext) -> ModelProvider:
    """Create the OpenAI provider of this target."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    client = http_client(target.max_concurrency)
    sdk = AsyncOpenAI(
        api_key=key or PLACEHOLDER_API_KEY, base_url=target.base_url or _BASE_URL, http_client=client, max_retries=0
    )
    return ModelProvider(
        _model(target, OpenAIProvider(openai_client=sdk)),
        client,
        capabilities=_CAPABILITIES_BY_API[target.api],
        defaults=SettingDefaults(temperature=target.temperature, max_tokens=target.max_tokens),
    )


def _model(target: OpenAITarget, provider: OpenAIProvider) -> Model:
    host = urlsplit(target.base_url or _BASE_URL).hostname or ""
    profile = OpenAIModelProfile(
        # The caller's settings are sent unchanged; the provider itself refuses those that it does not support. Without
        # this profile the library would silently drop a temperature, and for some models send system messages as the
        # user's.
        openai_supports_reasoning=False,
        openai_supports_encrypted_reasoning_content=False,
        openai_responses_supports_reasoning_context=False,
        openai_system_prompt_role="system",
        openai_chat_supports_max_completion_tokens=host.endswith(_MAX_COMPLETION_TOKENS_HOSTS),
    )
    kind = OpenAIChatModel if target.api == "chat" else OpenAIResponsesModel
    return kind(target.model, provider=provider, profile=merge_profile(profile, VERBATIM_PROFILE))


def _chat_tool_fields(tools: ToolSettings) -> RequestFields:
    body: RequestFields = {"tools": list(tools.raw_tools)}
    return body if tools.raw_choice is None else {**body, "tool_choice": tools.raw_choice}


def _chat_format_fields(response_format: JsonObject) -> RequestFields:
    return {"response_format": response_format}


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
    if format_type in {"text", "json_object"}:
        return {"text": {"format": response_format}}
    schema = response_format.get("json_schema")
    if format_type != "json_schema" or not isinstance(schema, dict):
        raise refusal(
            "settings.responseFormat", 'write {"type": "json_schema", "json_schema": {"name": …, "schema": …}}'
        )
    return {"text": {"format": {**schema, "type": "json_schema"}}}


_COMMON_SETTINGS = frozenset({"temperature", "max_tokens", "response_format", "tools", "tool_choice"})

_CAPABILITIES_BY_API = {
    "chat": ApiCapabilities(
        provider="openai",
        settings=_COMMON_SETTINGS | {"seed", "stop"},
        write_tools=_chat_tool_fields,
        write_format=_chat_format_fields,
    ),
    "responses": ApiCapabilities(
        provider="openai",
        settings=_COMMON_SETTINGS,
        write_tools=_responses_tool_fields,
        write_format=_responses_format_fields,
    ),
}
