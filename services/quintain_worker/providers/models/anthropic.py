"""Models behind the Anthropic API. Needs ``quintain[anthropic]``."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from quintain.config import AnthropicTarget
from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.factory import ProviderContext
from quintain_worker.providers.models.capabilities import ApiCapabilities, RequestFields, SettingDefaults
from quintain_worker.providers.models.provider import PLACEHOLDER_API_KEY, VERBATIM_PROFILE, ModelProvider, http_client
from quintain_worker.providers.models.tools import FunctionTool, ToolSettings

#: Given explicitly, so that no environment variable of the library changes it.
_BASE_URL = "https://api.anthropic.com"

#: The caller's settings are sent unchanged; the provider itself refuses those that it does not support.
_PROFILE = AnthropicModelProfile(
    anthropic_disallows_sampling_settings=False,
    anthropic_max_output_tokens=None,
    anthropic_binds_thinking_blocks=False,
)


def anthropic_provider(_name: str, target: AnthropicTarget, _context: ProviderContext) -> ModelProvider:
    """Create the Anthropic provider of this target."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    client = http_client(target.max_concurrency)
    sdk = AsyncAnthropic(
        api_key=key or PLACEHOLDER_API_KEY, base_url=target.base_url or _BASE_URL, http_client=client, max_retries=0
    )
    model = AnthropicModel(
        target.model,
        provider=AnthropicProvider(anthropic_client=sdk),
        profile=merge_profile(_PROFILE, VERBATIM_PROFILE),
    )
    return ModelProvider(
        model,
        client,
        capabilities=_CAPABILITIES,
        defaults=SettingDefaults(temperature=target.temperature, max_tokens=target.max_tokens),
    )


#: OpenAI's tool choices → Anthropic's.
_TOOL_CHOICES = {"none": "none", "auto": "auto", "required": "any"}


def _tool_fields(tools: ToolSettings) -> RequestFields:
    body: RequestFields = {"tools": [_tool_definition(function) for function in tools.functions]}
    if tools.required_function is not None:
        return {**body, "tool_choice": {"type": "tool", "name": tools.required_function}}
    return body if tools.choice_mode is None else {**body, "tool_choice": {"type": _TOOL_CHOICES[tools.choice_mode]}}


def _tool_definition(function: FunctionTool) -> JsonObject:
    tool: JsonObject = {"name": function.name, "input_schema": function.parameters_schema}
    if function.description is not None:
        tool["description"] = function.description
    if function.strict:
        tool["strict"] = True
    return tool


def _format_fields(response_format: JsonObject) -> RequestFields:
    """Return the request fields for a JSON schema; Anthropic takes no name or description, and is always strict."""
    if response_format.get("type") == "text":
        return {}
    json_schema = response_format.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
    if response_format.get("type") != "json_schema" or not isinstance(schema, dict):
        raise refusal("settings.responseFormat", "anthropic takes type json_schema, with a json_schema.schema")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


_CAPABILITIES = ApiCapabilities(
    provider="anthropic",
    settings=frozenset({"temperature", "max_tokens", "stop", "response_format", "tools", "tool_choice"}),
    write_tools=_tool_fields,
    write_format=_format_fields,
    allows_late_system=False,
    allows_empty_text=False,
    allows_image_detail=False,
    allows_text_arguments=False,
)
