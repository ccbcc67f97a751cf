"""Models behind OpenAI's API, or behind any server that speaks it. Needs ``quintain[openai]``."""

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
from quintain_worker.providers.build import Surroundings
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.dialect import Body, Defaults, Dialect
from quintain_worker.providers.model_tools import Function, Tools
from quintain_worker.providers.models import NO_KEY, VERBATIM, ModelProvider, http_client

#: Named, so that no variable of the library's own leads elsewhere.
_BASE_URL = "https://api.openai.com/v1"

#: Those who want ``max_completion_tokens``; other servers know ``max_tokens`` alone, and some ignore the other.
_NEW_LIMIT_HOSTS = (".openai.com", ".azure.com")


def openai_provider(_name: str, target: OpenAITarget, _surroundings: Surroundings) -> ModelProvider:
    """The provider of this target."""
    key = "" if target.api_key is None else target.api_key.get_secret_value().strip()
    client = http_client(target.max_concurrency)
    sdk = AsyncOpenAI(api_key=key or NO_KEY, base_url=target.base_url or _BASE_URL, http_client=client, max_retries=0)
    return ModelProvider(
        _model(target, OpenAIProvider(openai_client=sdk)),
        client,
        dialect=_DIALECTS[target.api],
        defaults=Defaults(temperature=target.temperature, max_tokens=target.max_tokens),
    )


def _model(target: OpenAITarget, provider: OpenAIProvider) -> Model:
    host = urlsplit(target.base_url or _BASE_URL).hostname or ""
    profile = OpenAIModelProfile(
        # What the caller sets is sent; the provider says so itself where it will not have it. The library would
        # drop a temperature in silence, and send system messages of some models as the user's.
        openai_supports_reasoning=False,
        openai_supports_encrypted_reasoning_content=False,
        openai_responses_supports_reasoning_context=False,
        openai_system_prompt_role="system",
        openai_chat_supports_max_completion_tokens=host.endswith(_NEW_LIMIT_HOSTS),
    )
    kind = OpenAIChatModel if target.api == "chat" else OpenAIResponsesModel
    return kind(target.model, provider=provider, profile=merge_profile(profile, VERBATIM))


def _chat_tools(tools: Tools) -> Body:
    body: Body = {"tools": list(tools.written)}
    return body if tools.choice_written is None else {**body, "tool_choice": tools.choice_written}


def _chat_format(form: JsonObject) -> Body:
    return {"response_format": form}


def _responses_tools(tools: Tools) -> Body:
    body: Body = {"tools": [_responses_tool(function) for function in tools.functions]}
    if tools.named is not None:
        return {**body, "tool_choice": {"type": "function", "name": tools.named}}
    return body if tools.choice is None else {**body, "tool_choice": tools.choice}


def _responses_tool(function: Function) -> JsonObject:
    # Said in any case: this API is strict where nothing is said, and the request's words mean that it is not.
    tool: JsonObject = {
        "type": "function",
        "name": function.name,
        "parameters": function.schema_of_parameters,
        "strict": bool(function.strict),
    }
    return tool if function.description is None else {**tool, "description": function.description}


def _responses_format(form: JsonObject) -> Body:
    kind = form.get("type")
    if kind in {"text", "json_object"}:
        return {"text": {"format": form}}
    schema = form.get("json_schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise refusal(
            "settings.responseFormat", 'write {"type": "json_schema", "json_schema": {"name": …, "schema": …}}'
        )
    return {"text": {"format": {**schema, "type": "json_schema"}}}


_EVERYWHERE = frozenset({"temperature", "max_tokens", "response_format", "tools", "tool_choice"})

_DIALECTS = {
    "chat": Dialect(
        provider="openai",
        settings=_EVERYWHERE | {"seed", "stop"},
        write_tools=_chat_tools,
        write_format=_chat_format,
    ),
    "responses": Dialect(
        provider="openai",
        settings=_EVERYWHERE,
        write_tools=_responses_tools,
        write_format=_responses_format,
    ),
}
