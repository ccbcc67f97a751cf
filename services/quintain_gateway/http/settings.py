"""Converts between the settings of a call and the parameters of other vendors' APIs. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError

from quintain.contracts.invoke import InvokeSettings, Result
from quintain_gateway.http.schemas import RequestModel, to_invalid_field

_NAMES = {field.alias: name for name, field in InvokeSettings.model_fields.items()}


def parameter_name(parameter: str) -> str:
    """Return the name of a setting as the other APIs write it, by its name in the protocol: top_p for topP."""
    return _NAMES.get(parameter, parameter)


def parse_settings(body: RequestModel, values: Mapping[str, object], unknown: Iterable[str] = ()) -> InvokeSettings:
    """Return the settings of a request.

    They are the fields of the body that are settings by their own names, ``values`` (which replace those), and what the
    body's API does not know: the target's provider refuses that by name, or ignores it where the session, the target or
    the request says so. ``unknown`` names such fields within the body. Raises `InvalidField`.
    """
    sent = {name: value for name, value in body if value is not None}
    known = {
        name: sent[name] for name in InvokeSettings.model_fields.keys() & type(body).model_fields.keys() & sent.keys()
    }
    extra = {name: sent[name] for name in body.unknown_fields()}
    try:
        return InvokeSettings.model_validate({**dict.fromkeys(unknown, True), **extra, **known, **values})
    except ValidationError as error:
        raise to_invalid_field(error) from None


def ignored_parameters(results: Sequence[Result]) -> list[str]:
    """Return the names of the parameters that any of these calls was made without."""
    return sorted({parameter_name(name) for result in results for name in result.ignored or ()})
