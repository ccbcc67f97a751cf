"""Models behind Anthropic's API. Needs ``quintain[anthropic]``."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles import merge_profile
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from quintain.config import AnthropicTarget
from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.build import Surroundings
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.dialect import Body, Defaults, Dialect
from quintain_worker.providers.model_tools import Function, Tools
from quintain_worker.providers.models import NO_KEY, VERBATIM, ModelProvider, http_client

#: Named, so that no variable of the library's own leads elsewhere.
_BASE_URL = "https://api.anthropic.com"

#: What the caller sets is sent, and sent once; the provider says so itself where it will not have it.
_AS_ASKED = AnthropicModelProfile(
    anthropic_disallows_sampling_settings=False,
    anthropic_max_output_tokens=None,
    anthropic_binds_thinking_blocks=False,
)


def anthropic_provider(_name: str, target: AnthropicTarget, _surroundings: Surroundings) -> ModelProvider:
    """The provider of this target."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    client = http_client(target.max_concurrency)
    sdk = AsyncAnthropic(
        api_key=key or NO_KEY, base_url=target.base_url or _BASE_URL, http_client=client, max_retries=0
    )
    model = AnthropicModel(
        target.model,
        provider=AnthropicProvider(anthropic_client=sdk),
        profile=merge_profile(_AS_ASKED, VERBATIM),
    )
    return ModelProvider(
        model,
        client,
        dialect=_DIALECT,
        defaults=Defaults(temperature=target.temperature, max_tokens=target.max_tokens),
    )


#: What OpenAI's words for a choice are here.
_CHOICES = {"none": "none", "auto": "auto", "required": "any"}


def _tools(tools: Tools) -> Body:
    body: Body = {"tools": [_tool(function) for function in tools.functions]}
    if tools.named is not None:
        return {**body, "tool_choice": {"type": "tool", "name": tools.named}}
    return body if tools.choice is None else {**body, "tool_choice": {"type": _CHOICES[tools.choice]}}


def _tool(function: Function) -> JsonObject:
    tool: JsonObject = {"name": function.name, "input_schema": function.schema_of_parameters}
    if function.description is not None:
        tool["description"] = function.description
    if function.strict:
        tool["strict"] = True
    return tool


def _format(form: JsonObject) -> Body:
    """The form of a JSON schema; its name and description have no place here, and it always holds strictly."""
    if form.get("type") == "text":
        return {}
    said = form.get("json_schema")
    schema = said.get("schema") if isinstance(said, dict) else None
    if form.get("type") != "json_schema" or not isinstance(schema, dict):
        raise refusal("settings.responseFormat", "anthropic takes type json_schema, with a json_schema.schema")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


_DIALECT = Dialect(
    provider="anthropic",
    settings=frozenset({"temperature", "max_tokens", "stop", "response_format", "tools", "tool_choice"}),
    write_tools=_tools,
    write_format=_format,
    late_system=False,
    empty_text=False,
    image_detail=False,
    text_arguments=False,
)
