"""Takes the settings of a request that a provider honours, and refuses the others by name.

A value that equals the default of the model APIs is accepted everywhere, because leaving it out changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from quintain.contracts.invoke import InvokeRequest, InvokeSettings, JsonObject
from quintain.contracts.strings import shorten
from quintain.errors import UnsupportedParameter
from quintain_worker.providers.provider import Billing, ProviderFailure

#: Returns the fields that a setting's value adds to the provider's request. Raises `UnsupportedValue`.
Writer = Callable[[Any], JsonObject]

#: Values that the model APIs have as their defaults, or that switch the setting off.
DEFAULT_VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "stop": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "thinking": ({"type": "disabled"},),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "extra_body": ({},),
}


class UnsupportedValue(Exception):
    """The provider has this setting, and cannot honour this value of it; the message says why."""


@dataclass(frozen=True, slots=True)
class TakenSettings:
    """The fields of the provider's request, and the names of the settings that it is made without."""

    fields: JsonObject
    ignored: tuple[str, ...] = ()


def no_fields(_value: object) -> JsonObject:
    """Write a setting that adds no field of its own to the provider's request."""
    return {}


#: The writers of a provider that passes every setting on, or answers the same whatever they are.
EVERY_SETTING: Final[Mapping[str, Writer]] = dict.fromkeys(InvokeSettings.model_fields, no_fields)


def take_settings(requested: InvokeSettings | None, writers: Mapping[str, Writer], provider: str) -> TakenSettings:
    """Return what the ``writers``, by the names of settings, make of these settings.

    A setting without a writer, or with a value that its writer cannot write, is left out if it is a default, listed as
    ignored if ``unsupported`` is ``ignore``, and refused otherwise. Raises `ProviderFailure`, which names the setting.
    """
    if requested is None:
        return TakenSettings({})
    fields: JsonObject = {}
    ignored: list[str] = []
    for name, (parameter, value) in _settings_with_values(requested).items():
        try:
            _merge(fields, _written(name, value, writers, provider))
        except UnsupportedValue as error:
            if value in DEFAULT_VALUES.get(name, ()):
                continue
            if requested.unsupported != "ignore":
                raise _unsupported(parameter, str(error)) from None
            ignored.append(parameter)
    return TakenSettings(fields, tuple(ignored))


def with_policy(request: InvokeRequest, *, ignore_unsupported: bool) -> InvokeRequest:
    """Return the request with ``unsupported: ignore``, unless it says itself what is to be done."""
    settings = request.settings
    if not ignore_unsupported or settings is None or settings.unsupported is not None:
        return request
    return request.model_copy(update={"settings": settings.model_copy(update={"unsupported": "ignore"})})


def _settings_with_values(settings: InvokeSettings) -> dict[str, tuple[str, Any]]:
    """Return each setting that has a value, by its field's name, with its name on the wire; unknown ones come last."""
    known = {
        name: (field.alias or name, value)
        for name, field in InvokeSettings.model_fields.items()
        if name != "unsupported" and (value := getattr(settings, name)) is not None
    }
    return known | {name: (name, (settings.model_extra or {})[name]) for name in sorted(settings.unknown())}


def _written(name: str, value: object, writers: Mapping[str, Writer], provider: str) -> JsonObject:
    if name not in InvokeSettings.model_fields:
        known = _nearest(name, [field.alias or key for key, field in InvokeSettings.model_fields.items()])
        raise UnsupportedValue(f"no setting has this name{known}; a field of the provider's own goes into extraBody")
    if name not in writers:
        raise UnsupportedValue(f"{provider} does not take it; leave it out")
    return writers[name](value)


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _merge(fields: JsonObject, more: JsonObject) -> None:
    for key, value in more.items():
        present = fields.get(key)
        fields[key] = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value


def _unsupported(parameter: str, reason: str) -> ProviderFailure:
    shown = shorten(parameter)
    fault = UnsupportedParameter(f"settings.{shown}: {reason}")
    fault.parameter = shown
    return ProviderFailure(fault, Billing.UNBILLED)
