"""Templates of requests to HTTP endpoints, and pointers into their answers (RFC 6901). No I/O.

A string of a template that is one placeholder, such as ``"{{ messages }}"``, becomes that value as JSON; a placeholder
inside a longer string becomes its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated
from urllib.parse import quote

from pydantic import AfterValidator, JsonValue

from quintain.config.secrets import iterate_strings, without_references

#: The values of a call that a template may name.
HTTP_PLACEHOLDERS = ("prompt", "system_prompt", "messages", "settings", "session", "conversation_id")

_PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


def placeholders_of(template: object) -> Iterator[str]:
    """Yield the name of each placeholder in a template. Raises `ValueError` for one that no call has."""
    for _, text in iterate_strings(template):
        for name in _PLACEHOLDER.findall(without_references(text)):
            if name not in HTTP_PLACEHOLDERS:
                raise ValueError(f"unknown placeholder {{{{ {name} }}}}; known: {', '.join(HTTP_PLACEHOLDERS)}")
            yield name


def fill_template(template: JsonValue, values: Mapping[str, JsonValue]) -> JsonValue:
    """Return the template with the values of a call; a member whose value is None is left out."""
    if isinstance(template, str):
        whole = _PLACEHOLDER.fullmatch(template)
        if whole is not None:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda found: _text_of(values[found[1]]), template)
    if isinstance(template, dict):
        filled = {key: fill_template(value, values) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value is not None or template[key] is None}
    if isinstance(template, list):
        return [fill_template(value, values) for value in template]
    return template


def fill_url(template: str, values: Mapping[str, JsonValue]) -> str:
    """Return a URL's template with the values of a call, percent-encoded.

    Raises `ValueError`, which names the placeholder, for a value that would be another place of the path.
    """

    def encoded(found: re.Match[str]) -> str:
        text = _text_of(values[found[1]])
        if text and not text.strip("."):
            raise ValueError(f"{found[1]}: dots alone cannot stand in a URL")
        return quote(text, safe="")

    return _PLACEHOLDER.sub(encoded, template)


def _text_of(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _check_pointer(pointer: str) -> str:
    if pointer and not pointer.startswith("/"):
        raise ValueError('not a JSON pointer; write it as "/output/text", or "" for the whole answer')
    if re.search("~(?![01])", pointer):
        raise ValueError("not a JSON pointer; a ~ is written as ~0, and a / in a name as ~1")
    return pointer


#: A pointer into a JSON document (RFC 6901); of a list, -1 is the last item.
JsonPointer = Annotated[str, AfterValidator(_check_pointer)]

_INDEX = re.compile("0|-?[1-9][0-9]{0,8}")


def find(document: object, pointer: str) -> object:
    """Return what a pointer points at; None where that is nothing."""
    found = document
    for part in pointer.split("/")[1:]:
        if isinstance(found, dict):
            found = found.get(part.replace("~1", "/").replace("~0", "~"))
        elif isinstance(found, list) and _INDEX.fullmatch(part) and -len(found) <= int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found
