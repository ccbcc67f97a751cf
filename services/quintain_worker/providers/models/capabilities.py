"""What a model API supports of a request, and how it writes tools and response formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.models.tools import ToolSettings

#: Fields of the request body.
RequestFields = JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCapabilities:
    """What a provider's API supports. ``settings`` are field names of `InvokeSettings`.

    ``write_tools`` and ``write_format`` return the request fields for tools and response format; they bypass the
    library, which would rewrite schemas. ``write_format`` raises `ProviderFailure` for a format that the API lacks.
    """

    provider: str
    settings: frozenset[str]
    write_tools: Callable[[ToolSettings], RequestFields]
    write_format: Callable[[JsonObject], RequestFields]
    #: Whether a system message may come after other messages, and whether a message may be empty.
    allows_late_system: bool = True
    allows_empty_text: bool = True
    #: Whether an image may have a ``detail`` field.
    allows_image_detail: bool = True
    #: Whether a tool call's arguments may be any text; otherwise they must be a JSON object.
    allows_text_arguments: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDefaults:
    """The target's configured settings, used where a request sets none."""

    temperature: float | None
    max_tokens: int | None
