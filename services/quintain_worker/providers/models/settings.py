"""Converts a request's settings into the model library's.

Settings that the library would rewrite are put into the request body unchanged.
"""

from __future__ import annotations

from pydantic_ai.settings import ModelSettings

from quintain.contracts.invoke import InvokeSettings
from quintain_worker.providers.conversation import refuse_settings
from quintain_worker.providers.models.capabilities import ApiCapabilities, RequestFields, SettingDefaults
from quintain_worker.providers.models.tools import tools_of


def settings_of(requested: InvokeSettings, defaults: SettingDefaults, capabilities: ApiCapabilities) -> ModelSettings:
    """Convert the settings of one try.

    Raises `ProviderFailure`, naming the field, for a setting that is not supported.
    """
    refuse_settings(requested, supported=capabilities.settings, provider=capabilities.provider)
    settings = ModelSettings(max_retries=0)
    temperature = defaults.temperature if requested.temperature is None else requested.temperature
    if temperature is not None:
        settings["temperature"] = temperature
    max_tokens = defaults.max_tokens if requested.max_tokens is None else requested.max_tokens
    if max_tokens is not None:
        settings["max_tokens"] = max_tokens
    if requested.seed is not None:
        settings["seed"] = requested.seed
    if requested.stop is not None:
        settings["stop_sequences"] = [requested.stop] if isinstance(requested.stop, str) else requested.stop
    body = _extra_body(requested, capabilities)
    if body:
        settings["extra_body"] = body
    return settings


def _extra_body(requested: InvokeSettings, capabilities: ApiCapabilities) -> RequestFields:
    tools = tools_of(requested)
    body = {} if tools is None else capabilities.write_tools(tools)
    return (
        body if requested.response_format is None else {**body, **capabilities.write_format(requested.response_format)}
    )
