"""A request's settings as the model library takes them; what it would reword goes into the body as it was written."""

from __future__ import annotations

from pydantic_ai.settings import ModelSettings

from quintain.contracts.invoke import InvokeSettings
from quintain_worker.providers.conversation import refuse_settings
from quintain_worker.providers.dialect import Body, Defaults, Dialect
from quintain_worker.providers.model_tools import tools_of


def settings_of(asked: InvokeSettings, defaults: Defaults, dialect: Dialect) -> ModelSettings:
    """The settings of one try. Raises `ProviderFailure`, naming the field, for what the provider cannot honour."""
    refuse_settings(asked, honoured=dialect.settings, who=dialect.provider)
    settings = ModelSettings(max_retries=0)
    temperature = defaults.temperature if asked.temperature is None else asked.temperature
    if temperature is not None:
        settings["temperature"] = temperature
    max_tokens = defaults.max_tokens if asked.max_tokens is None else asked.max_tokens
    if max_tokens is not None:
        settings["max_tokens"] = max_tokens
    if asked.seed is not None:
        settings["seed"] = asked.seed
    if asked.stop is not None:
        settings["stop_sequences"] = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    body = _body(asked, dialect)
    if body:
        settings["extra_body"] = body
    return settings


def _body(asked: InvokeSettings, dialect: Dialect) -> Body:
    tools = tools_of(asked)
    body = {} if tools is None else dialect.write_tools(tools)
    return body if asked.response_format is None else {**body, **dialect.write_format(asked.response_format)}
