"""What translations between APIs share: what has no counterpart is refused or named. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from quintain.contracts.invoke import TokenUsage
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


#: Fields that change no answer, wherever they stand: a call is made without them, and says so.
WITHOUT_EFFECT = frozenset(
    {"annotations", "cache_control", "eager_input_streaming", "generate_summary", "metadata", "phase",
     "prompt_cache_breakpoint", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
     "safety_identifier", "service_tier", "store", "summary", "user"}
)  # fmt: skip

#: The same, of fields that change an answer with other values.
_DEFAULTS: Json = {"allowed_callers": ["direct"], "async": False, "caller": {"type": "direct"}, "defer_loading": False}


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

    def leave_out_rest(self, path: str, value: Json, known: Collection[str] = ()) -> None:
        """Leave out the fields of an object that are not among those that a translation knows; empty ones are none."""
        for name in sorted(value.keys() - set(known)):
            if value[name] in (None, [], {}):
                continue
            last = name.rpartition(".")[2]
            if last not in WITHOUT_EFFECT and value[name] != _DEFAULTS.get(last):
                self.leave_out(f"{path}{name}", value=value[name])
            elif value[name] is not False:
                self.note(f"{path}{name}")


def invalid(field: str, reason: str) -> BadRequest:
    """Return the fault of a field whose value no API takes."""
    fault = BadRequest(f"{shorten(field)}: {reason}")
    fault.parameter = shorten(field)
    return fault


def text_of(content: object) -> str:
    """Return the text of a message's content, which is text or a list of parts; parts without text are skipped."""
    if isinstance(content, list):
        return "".join(text_of(part.get("text") if isinstance(part, dict) else part) for part in content)
    return content if isinstance(content, str) else ""


def thinking_of(message: Json) -> str:
    """Return the reasoning of a message where vendors keep it; Mistral's stands in parts of the content."""
    parts: object = [part.get("thinking") for part in objects(message.get("content"))]
    return text_of(message.get("reasoning_content") or message.get("reasoning") or parts)


def calls_of(message: Json) -> list[Json]:
    """Return the calls of a message of the chat API; ``function_call`` is the older form of one."""
    calls = objects(message.get("tool_calls"))
    return [*calls, *({"index": len(calls), "function": one} for one in objects([message.get("function_call")]))]


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


#: Where the usage of each API has its counts: input, output, cached, written to a cache, reasoning, and written to it
#: for an hour. Anthropic's input has neither what was read from a cache nor what was written to one.
_USAGE: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "chat": (
        ("prompt_tokens",),
        ("completion_tokens",),
        ("prompt_tokens_details", "cached_tokens"),
        ("prompt_tokens_details", "cache_write_tokens"),
        ("completion_tokens_details", "reasoning_tokens"),
    ),
    "responses": (
        ("input_tokens",),
        ("output_tokens",),
        ("input_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cache_write_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
    ),
    "messages": (
        ("input_tokens",),
        ("output_tokens",),
        ("cache_read_input_tokens",),
        ("cache_creation_input_tokens",),
        ("output_tokens_details", "thinking_tokens"),
        ("cache_creation", "ephemeral_1h_input_tokens"),
    ),
}


def read_usage(api: str, usage: Any) -> TokenUsage | None:
    """Read the token counts of an answer; None where some are missing, or impossible: the others say too little."""
    if not isinstance(usage, dict):
        return None
    values = [_value_at(usage, *place) for place in _USAGE.get(api, _USAGE["chat"])]
    if api == "embeddings" and values[1] is None:
        values[1] = 0
    if None in values[:2] or not all(value is None or count_of(value) is not None for value in values):
        return None
    given, output, cached, cache_write, reasoning, *for_an_hour = values
    # xAI and Google count what a model thought in the total alone, and bill it as output
    # (https://docs.x.ai/docs/key-information/consumption-and-rate-limits).
    if api in {"chat", "responses"} and (total := count_of(usage.get("total_tokens"))) is not None:
        output = max(output, total - given)
    outside = (cached or 0) + (cache_write or 0) if api == "messages" else 0
    counted = TokenUsage.unchecked(  # `count_of` has checked them
        input=given + outside,
        output=output,
        cached=cached or None,
        cache_write=cache_write or None,
        cache_write_1h=(for_an_hour[0] if for_an_hour else None) or None,
        reasoning=reasoning,
    )
    return counted if counted.is_plausible else None


def _value_at(usage: Json, name: str, below: str = "") -> Any:
    value = usage.get(name)
    return (value.get(below) if isinstance(value, dict) else None) if below else value


def written_usage(api: str, usage: TokenUsage) -> Json:
    """Return token counts in the words of an API; zero for those that are not known, because clients require them."""
    cached, cache_write = usage.cached or 0, usage.cache_write or 0
    outside = cached + cache_write if api == "messages" else 0
    counts = [max(0, usage.input - outside), usage.output, cached, cache_write]
    if usage.reasoning or api != "messages":
        counts.append(usage.reasoning or 0)
    written: Json = {} if api == "messages" else {"total_tokens": usage.input + usage.output}
    for (*above, name), count in zip(_USAGE[api], counts, strict=False):
        (written.setdefault(above[0], {}) if above else written)[name] = count
    if usage.cache_write_1h and api == "messages":
        hour = min(usage.cache_write_1h, cache_write)
        written["cache_creation"] = {
            "ephemeral_5m_input_tokens": cache_write - hour,
            "ephemeral_1h_input_tokens": hour,
        }
    return written


Convert = Callable[[str, Any, Translation], Any]


def _unchanged(_field: str, value: Any, _translation: Translation) -> Any:
    return value


class Field(NamedTuple):
    """A setting that another API has too: its name in chat requests, and its place in the other's, with a dot below.

    Its values are translated with the name of the field that they come from; one that is left out becomes None.
    """

    chat: str
    own: str
    to_chat: Convert = _unchanged
    from_chat: Convert = _unchanged


def settings_to_chat(fields: Iterable[Field], settings: Json, translation: Translation) -> Json:
    """Return the settings of another API's request as those of a chat request. Raises `BadRequest`."""
    # What stands below a field is looked up by its place.
    rest = dict(settings)
    for name in {field.own.partition(".")[0] for field in fields if "." in field.own}:
        rest |= {f"{name}.{below}": value for below, value in object_of(name, rest.pop(name, None)).items()}
    return _moved(rest, {field.own: (field.chat, field.to_chat) for field in fields}, translation)


def settings_from_chat(fields: Iterable[Field], settings: Json, translation: Translation) -> Json:
    """Return the settings of a chat request as those of another API's. Raises `BadRequest`."""
    rest = dict(settings)
    if (limit := rest.pop("max_completion_tokens", None)) is not None:
        rest["max_tokens"] = limit
    body: Json = {}
    places = {field.chat: (field.own, field.from_chat) for field in fields}
    for place, value in _moved(rest, places, translation).items():
        name, _, below = place.partition(".")
        if below:
            body.setdefault(name, {})[below] = value
        else:
            body[name] = value
    return body


def _moved(rest: Json, places: Mapping[str, tuple[str, Convert]], translation: Translation) -> Json:
    """Return the values of these fields in their other places; the rest is named or left out."""
    moved: Json = {}
    for name, (place, convert) in places.items():
        value = rest.pop(name, None)
        if value is not None and (converted := convert(name, value, translation)) is not None:
            moved[place] = converted
    translation.leave_out_rest("", rest)
    return moved


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
    translation.leave_out_rest(f"{field}.", tool, ("type", "function"))
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
