"""Models behind the Anthropic API. Needs ``quintain[anthropic]``."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from quintain.config import AnthropicTarget
from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.factory import ProviderContext
from quintain_worker.providers.models.capabilities import ApiCapabilities, RequestFields, fields_of_same_name
from quintain_worker.providers.models.provider import PLACEHOLDER_API_KEY, VERBATIM_PROFILE, ModelProvider, http_client
from quintain_worker.providers.models.tools import FunctionTool, ToolSettings
from quintain_worker.providers.settings import UnsupportedValue, no_fields

#: Given explicitly, so that no environment variable of the library changes it.
_BASE_URL = "https://api.anthropic.com"

#: The caller's settings are sent unchanged; the provider itself refuses those that it does not support.
_PROFILE = AnthropicModelProfile(
    anthropic_disallows_sampling_settings=False,
    anthropic_max_output_tokens=None,
    anthropic_binds_thinking_blocks=False,
)


def anthropic_provider(name: str, target: AnthropicTarget, _context: ProviderContext) -> ModelProvider:
    """Create the Anthropic provider of this target. Raises `ConfigError` for settings that its API lacks."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    base_url = target.base_url or _BASE_URL
    client = http_client(target.max_concurrency, base_url)
    sdk = AsyncAnthropic(api_key=key or PLACEHOLDER_API_KEY, base_url=base_url, http_client=client, max_retries=0)
    model = AnthropicModel(
        target.model,
        provider=AnthropicProvider(anthropic_client=sdk),
        profile=merge_profile(_PROFILE, VERBATIM_PROFILE),
    )
    return ModelProvider(name, target, model, client, CAPABILITIES)


#: OpenAI's tool choices → Anthropic's.
_TOOL_CHOICES = {"none": "none", "auto": "auto", "required": "any"}


#: The values of ``reasoning_effort`` that Anthropic's ``effort`` has too.
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def _tool_fields(tools: ToolSettings) -> RequestFields:
    body: RequestFields = {"tools": [_tool_definition(function) for function in tools.functions]}
    choice: RequestFields = {}
    if tools.required_function is not None:
        choice = {"type": "tool", "name": tools.required_function}
    elif tools.choice_mode is not None:
        choice = {"type": _TOOL_CHOICES[tools.choice_mode]}
    if tools.parallel is False and choice.get("type") != "none":
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    return {**body, "tool_choice": choice} if choice else body


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
        raise UnsupportedValue("anthropic takes type json_schema, with a json_schema.schema")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _stop_fields(stop: str | list[str]) -> RequestFields:
    return {"stop_sequences": [stop] if isinstance(stop, str) else list(stop)}


def _effort_fields(effort: str) -> RequestFields:
    if effort not in _EFFORTS:
        raise UnsupportedValue(f"anthropic takes {', '.join(_EFFORTS)}")
    return {"output_config": {"effort": effort}}


CAPABILITIES = ApiCapabilities(
    provider="anthropic",
    writers={
        **fields_of_same_name("temperature", "max_tokens", "top_p", "top_k", "thinking"),
        # The tools' own fields hold whether they may be called in parallel; `settings_of` adds the extra body.
        **dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls", "extra_body"), no_fields),
        "stop": _stop_fields,
        "reasoning_effort": _effort_fields,
        "response_format": _format_fields,
    },
    write_tools=_tool_fields,
    allows_late_system=False,
    allows_empty_text=False,
    allows_image_detail=False,
    allows_text_arguments=False,
    takes_signed_reasoning=True,
    marks_failed_calls=True,
)
