"""What a model API supports of a request, and how it writes tools and response formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue

from quintain.contracts.invoke import JsonObject
from quintain_worker.providers.models.tools import ToolSettings
from quintain_worker.providers.settings import Writer

#: Fields of the request body.
RequestFields = JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCapabilities:
    """What a provider's API supports.

    ``writers`` return the request fields of each setting that it supports, by the names of `InvokeSettings`;
    ``write_tools`` returns those of tools, tool choice and parallel tool calls.
    """

    provider: str
    writers: Mapping[str, Writer]
    write_tools: Callable[[ToolSettings], RequestFields]
    #: Whether a system message may come after other messages, and whether a message may be empty.
    allows_late_system: bool = True
    allows_empty_text: bool = True
    #: Whether an image may be given by its URL, which the provider fetches.
    allows_image_urls: bool = True
    #: Whether an image may have a ``detail`` field.
    allows_image_detail: bool = True
    #: Whether a tool call's arguments may be any text; otherwise they must be a JSON object.
    allows_text_arguments: bool = True
    #: Whether the API takes back the reasoning of an earlier answer, where the provider has signed it.
    takes_signed_reasoning: bool = False
    #: Whether the answer to a tool call may say that the call failed.
    marks_failed_calls: bool = False


def fields_of_same_name(*names: str) -> dict[str, Writer]:
    """Return the writers of settings that the API has under the same name."""
    return {name: partial(_field, name) for name in names}


def _field(name: str, value: JsonValue) -> RequestFields:
    return {name: value}
