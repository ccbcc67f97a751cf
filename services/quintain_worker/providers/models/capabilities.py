"""What a model API supports of a request, and how it writes tools and response formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.models.tools import ToolSettings

#: Fields of a request's body.
RequestFields = JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCapabilities:
    """What a provider's API can honour. ``settings`` are field names of `InvokeSettings`.

    ``write_tools`` and ``write_format`` give the fields of the body that say the tools and the response format: the
    library rewrites schemas on their way. ``write_format`` raises `ProviderFailure` for a form its provider has not.
    """

    provider: str
    settings: frozenset[str]
    write_tools: Callable[[ToolSettings], RequestFields]
    write_format: Callable[[JsonObject], RequestFields]
    #: Whether a system message may come later than first, and a message be empty.
    allows_late_system: bool = True
    allows_empty_text: bool = True
    #: Whether an image may say its detail.
    allows_image_detail: bool = True
    #: Whether a tool call's arguments are the model's text, whatever it wrote; else they are a JSON object.
    allows_text_arguments: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDefaults:
    """What the target says where a request says nothing."""

    temperature: float | None
    max_tokens: int | None
