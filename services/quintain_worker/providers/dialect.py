"""What a model provider's API can honour of a request, and how it writes what the library has no faithful words for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.model_tools import Tools

#: Fields of a request's body.
Body = JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a provider's API can honour. ``settings`` are field names of `InvokeSettings`.

    ``write_tools`` and ``write_format`` give the fields of the body that say the tools and the response format: the
    library rewrites schemas on their way. ``write_format`` raises `ProviderFailure` for a form its provider has not.
    """

    provider: str
    settings: frozenset[str]
    write_tools: Callable[[Tools], Body]
    write_format: Callable[[JsonObject], Body]
    #: Whether a system message may come later than first, and a message be empty.
    late_system: bool = True
    empty_text: bool = True
    #: Whether an image may say its detail.
    image_detail: bool = True
    #: Whether a tool call's arguments are the model's text, whatever it wrote; else they are a JSON object.
    text_arguments: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the target says where a request says nothing."""

    temperature: float | None
    max_tokens: int | None
