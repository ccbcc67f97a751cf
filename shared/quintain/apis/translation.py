"""What translations between APIs share: what has no counterpart is refused or named; images and files. No I/O."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from quintain.contracts.values import shorten
from quintain.errors import BadRequest, UnsupportedParameter

#: A JSON object of a vendor's API. Its shape is the vendor's: what is read from it is checked where it is read.
Json = dict[str, Any]


#: Values that the model APIs have as their defaults, or that switch the field off: leaving them out changes nothing.
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


class Translation:
    """One request on its way to an API: what it has no counterpart for is refused, or named in `ignored`.

    ``to`` is the API in the words of an error; ``ignore_unsupported`` lets calls be made without what it lacks.
    """

    def __init__(self, to: str, *, ignore_unsupported: bool = False) -> None:
        self.to, self._ignores = to, ignore_unsupported
        self.ignored: list[str] = []
        #: Where each message of the chat request stands in the caller's, where that is of another API.
        self.places: list[str] = []

    def leave_out(self, field: str, reason: str = "", value: object = None) -> None:
        """Ask without a field that changes an answer, unless its ``value`` is the default of the model APIs.

        Raises `UnsupportedParameter` where that is not allowed.
        """
        if value in DEFAULT_VALUES.get(field, ()):
            return
        if not self._ignores:
            fault = UnsupportedParameter(f"{shorten(field)}: {reason or f'{self.to} does not take it; leave it out'}")
            fault.parameter = shorten(field)
            raise fault
        self.note(field)

    def note(self, field: str) -> None:
        """Name a field that is left out and changes no answer."""
        if field not in self.ignored:
            self.ignored.append(field)

    def leave_out_rest(self, path: str, value: Json, known: Collection[str]) -> None:
        """Leave out the fields of an object that are not among those that a translation knows; empty ones are none."""
        for name in sorted(value.keys() - set(known)):
            if value[name] not in (None, [], {}):
                self.leave_out(f"{path}{name}", value=value[name])

    def note_given(self, path: str, value: Json, names: Collection[str]) -> None:
        """Name those of these fields that an object has and that change no answer."""
        for name in names:
            if value.get(name) not in (None, False, [], {}):
                self.note(f"{path}{name}")


def invalid(field: str, reason: str) -> BadRequest:
    """Return the fault of a field whose value no API takes."""
    fault = BadRequest(f"{shorten(field)}: {reason}")
    fault.parameter = shorten(field)
    return fault


def text_of(content: object) -> str:
    """Return the text of a message's content, which is text or a list of parts; parts without text are skipped."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def all_objects(field: str, value: object) -> list[Json]:
    """Return the objects of a list in a request. Raises `BadRequest` for what is no list of objects."""
    items = objects(value)
    if not isinstance(value, list) or len(items) != len(value):
        raise invalid(field, "it is a list of objects, or a text where the API takes one")
    return items


def object_of(field: str, value: object) -> Json:
    """Return an object of a request, empty for None. Raises `BadRequest` for anything else."""
    if value is not None and not isinstance(value, dict):
        raise invalid(field, "it is an object")
    return value or {}


def named(field: str, value: object) -> object:
    """Return a name or an id of a request. Raises `BadRequest` where it is none."""
    if not isinstance(value, str) or not value:
        raise invalid(field, "it is a text")
    return value


def objects(value: object) -> list[Json]:
    """Return the objects of a list; what is no object is skipped."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def count_of(value: object) -> int | None:
    """Return a number of tokens; None for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def parse_object(text: object) -> Json | None:
    """Return the JSON object that a text is; None where it is none."""
    try:
        parsed = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def tool_call(call_id: object, name: object, arguments: object) -> Json:
    """Return a call of a function as a message of the chat API has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def check_turn(field: str, message: object) -> None:
    """Check one message of the chat API: its role, and what only some roles have. Raises `BadRequest`."""
    if not isinstance(message, dict):
        raise invalid(field, "it is an object")
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise invalid(f"{field}.role", "it is system, user, assistant or tool")
    if message.get("tool_calls") and role != "assistant":
        raise invalid(f"{field}.tool_calls", "only a message of the assistant holds calls")
    if role == "tool" and not message.get("tool_call_id"):
        raise invalid(f"{field}.tool_call_id", "a message of role tool names the call that it answers")
    if role != "tool" and message.get("tool_call_id") is not None:
        raise invalid(f"{field}.tool_call_id", "only a message of role tool answers a call")
    for index, part in enumerate(content if isinstance(content, list) and role != "user" else ()):
        if not isinstance(part, dict) or not isinstance(part.get("text", part.get("refusal")), str):
            raise invalid(f"{field}.content[{index}]", "this target takes text parts only here")


def function_of(field: str, tool: object, translation: Translation) -> Json:
    """Return the function of a tool of the chat API. Raises `BadRequest` for another tool, or one without a name."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not function.get("name"):
        raise invalid(field, f"{translation.to} takes functions, each with a name")
    translation.leave_out_rest(f"{field}.", tool, ("type", "function", "cache_control"))
    translation.leave_out_rest(f"{field}.function.", function, ("name", "description", "parameters", "strict"))
    return function


def chosen_function(choice: object, tools: list[Json], translation: Translation) -> object | None:
    """Return the name of the function that a tool choice of the chat API demands; None where it is left out.

    Raises `BadRequest` for one that is not offered.
    """
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict):
        translation.leave_out("tool_choice", "write none, auto, required, or the name of a function")
        return None
    name = function.get("name")
    if name not in [tool.get("name") for tool in tools]:
        raise invalid("tool_choice", "it names none of tools")
    return name


#: The media types that every API takes.
FILE_TYPES = ("application/pdf",)
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def image_part(field: str, part: Json, translation: Translation) -> Json:
    """Return the ``image_url`` object of a chat part. Raises `BadRequest` where it has none."""
    image = part.get("image_url")
    if not isinstance(image, dict) or not isinstance(image.get("url"), str) or not image["url"]:
        raise invalid(f"{field}.image_url", 'write it as {"url": "https://host/…"}')
    translation.leave_out_rest(f"{field}.", part, ("type", "image_url", "cache_control"))
    translation.leave_out_rest(f"{field}.image_url.", image, ("url", "detail"))
    return image


def image_source(field: str, url: str) -> Json:
    """Return an image's URL as a source of Anthropic's. Raises `BadRequest` for one that no API takes."""
    if url[:5].lower() != "data:":
        return {"type": "url", "url": url}
    return _source(f"{field}.image_url.url", url, IMAGE_TYPES)


def file_of(field: str, part: Json, translation: Translation) -> Json:
    """Return the ``file`` object of a chat part. Raises `BadRequest` where it has no content."""
    file = part.get("file")
    if not isinstance(file, dict) or not isinstance(file.get("file_data"), str) or not file["file_data"]:
        raise invalid(f"{field}.file", 'write it as {"file_data": "data:application/pdf;base64,…"}')
    translation.leave_out_rest(f"{field}.", part, ("type", "file", "cache_control"))
    translation.leave_out_rest(f"{field}.file.", file, ("file_data", "filename"))
    return file


def document_of(field: str, part: Json, translation: Translation) -> Json:
    """Return a ``file`` part with a PDF as a document of Anthropic's. Raises `BadRequest` for any other file."""
    file = file_of(field, part, translation)
    document: Json = {"type": "document", "source": _source(f"{field}.file.file_data", file["file_data"], FILE_TYPES)}
    return document if file.get("filename") is None else {**document, "title": file["filename"]}


def file_part(data_url: str, name: object) -> Json:
    """Return a file as a chat part."""
    return {"type": "file", "file": {"file_data": data_url, **({} if name is None else {"filename": name})}}


def _source(field: str, url: str, media_types: Sequence[str]) -> Json:
    media_type = check_data_url(field, url, media_types)
    return {"type": "base64", "media_type": media_type, "data": url.partition(",")[2]}


def check_data_url(field: str, url: str, media_types: Sequence[str]) -> str:
    """Return the media type of a data URL in base64. Raises `BadRequest` for another type, or what is no base64."""
    head, _, encoded = url.partition(",")
    media_type, _, encoding = head[len("data:") :].lower().partition(";")
    if media_type not in media_types or encoding != "base64":
        raise invalid(field, f"a data URL holds {', '.join(media_types)}, in base64: data:{media_types[0]};base64,…")
    try:
        base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(field, "what follows the comma is not base64") from None
    return media_type


def check_url(field: str, url: str, *, allows_urls: bool) -> None:
    """Check a URL that the provider would fetch.

    Raises `BadRequest` for what is not ``https``, for an address that is not public, and for any where the target does
    not allow them.
    """
    if not allows_urls:
        raise invalid(field, "this target takes no URLs (image_urls: refuse); send data:image/png;base64,…")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme != "https":
        raise invalid(field, "write it as https://host/… or data:image/png;base64,…")
    # Readers of URLs differ in what they take for the host where one of these stands before it.
    if not is_public_host(host) or "@" in parts.netloc or "\\" in url:
        raise invalid(field, "it names an address that is not public")


#: The last names of hosts of one's own network.
_PRIVATE_NAMES = frozenset({"localhost", "localdomain", "local", "internal", "lan", "home", "corp", "intranet", "arpa"})

#: The only block of IPv6 with public addresses; in parts of it any IPv4 address may be written.
_PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = tuple(ipaddress.ip_network(block) for block in ("2002::/16", "2001::/32", "192.0.0.0/24"))


def is_public_host(host: str) -> bool:
    """Whether the name of a host may be one that everybody reaches; names are not looked up."""
    try:
        # Other forms of letters, digits and dots are read as the ordinary ones.
        name = host.encode("idna").decode().rstrip(".").lower()
    except UnicodeError:
        return False
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        # Numbers that some resolvers read as an address (2130706433, 0x7f.1) are names of no host.
        last = name.rpartition(".")[2]
        return "." in name and last not in _PRIVATE_NAMES and not last[:1].isdigit()
    is_public = address.is_global and not address.is_multicast and not any(address in block for block in _NOT_PUBLIC)
    return is_public and (address.version == 4 or address in _PUBLIC_IPV6)
