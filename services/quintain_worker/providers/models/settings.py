"""Converts a request's settings into fields of the provider's request.

The library gets none of them: it would rewrite some, drop others for models that it takes for models without them, and
knows no name for the rest (decision 18).
"""

from __future__ import annotations

from pydantic_ai.settings import ModelSettings

from quintain.contracts.invoke import InvokeSettings, JsonObject
from quintain.contracts.strings import shorten
from quintain_worker.providers.conversation import refusal
from quintain_worker.providers.models.capabilities import ApiCapabilities
from quintain_worker.providers.models.tools import tools_of
from quintain_worker.providers.settings import take_settings

#: Fields of a provider's request that ``extra_body`` may not hold: what Quintain sends itself, what would make several
#: answers of one call, and what would read conversations that the provider stores for others.
RESERVED_FIELDS = frozenset(
    {
        "background",
        "best_of",
        "conversation",
        "input",
        "instructions",
        "messages",
        "model",
        "n",
        "previous_response_id",
        "prompt",
        "stream",
        "stream_options",
        "system",
    }
)


def settings_of(
    requested: InvokeSettings | None, defaults: InvokeSettings, capabilities: ApiCapabilities
) -> tuple[ModelSettings, tuple[str, ...]]:
    """Return the library's settings for one try, and the names of the settings that are ignored.

    ``defaults`` are the target's, used where the request sets none. Raises `ProviderFailure`, naming the setting, for
    one that cannot be honoured.
    """
    settings = with_defaults(requested, defaults)
    taken = take_settings(settings, capabilities.writers, capabilities.provider)
    fields = dict(taken.fields)
    tools = tools_of(settings)
    if tools is not None:
        fields |= capabilities.write_tools(tools)
    fields |= extra_fields(settings.extra_body or {}, fields)
    return ModelSettings(max_retries=0, extra_body=fields), taken.ignored


def with_defaults(requested: InvokeSettings | None, defaults: InvokeSettings) -> InvokeSettings:
    """Return the settings of a request, and the target's where it sets none."""
    if requested is None:
        return defaults
    values = {name: value for name in requested.model_fields_set if (value := getattr(requested, name)) is not None}
    if defaults.extra_body and requested.extra_body:
        values["extra_body"] = {**defaults.extra_body, **requested.extra_body}
    return defaults.model_copy(update=values)


def extra_fields(extra_body: JsonObject, fields: JsonObject) -> JsonObject:
    """Return the fields of the provider's own.

    Raises `ProviderFailure` for one that is among ``fields``, or that may not be set so.
    """
    for name in extra_body:
        if name in RESERVED_FIELDS or name in fields:
            reason = "it is sent already, by a setting of its own" if name in fields else "it may not be set here"
            raise refusal(f"settings.extraBody.{shorten(name)}", reason)
    return extra_body
