"""Templates of Nunjucks, promptfoo's: which of them mean the same in Jinja2, and what they print. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from jinja2 import ChainableUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quintain.contracts.message import MAX_BODY_BYTES
from quintain_runner.spec.right_answers import answer_text

_ANY = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_OPEN = re.compile(r"\{[{%#]")

#: A variable with the keys below it, but not the names that have a value of their own there.
_PATH = (
    r"(?!(?:env|null|undefined|none|true|false|not|_conversation)\b)[A-Za-z_]\w*(?:\.(?!length\b)[A-Za-z_]\w*|\[\d+\])*"
)
_TEXT = r"""(?:"[^"'\\]*"|'[^"'\\]*')"""
_FILTERS = (
    r"(?:\s*\|\s*(?:(?:upper|lower|trim|capitalize|safe|string|first|last|length)\b|"
    rf"(?:default|d|join)\({_TEXT}\)|replace\({_TEXT},\s*{_TEXT}\)))*"
)
_TEST = rf"(?:not\s+)?{_PATH}(?:\s+is\s+(?:not\s+)?defined|\s*[=!]=\s*{_TEXT})?"

#: What means the same in both languages.
_SAME = re.compile(
    rf"\{{\{{-?\s*(?:{_PATH}|{_TEXT}){_FILTERS}\s*-?\}}\}}|\{{#.*?#\}}|"
    rf"\{{%-?\s*(?:(?:el)?if\s+{_TEST}(?:\s+(?:and|or)\s+{_TEST})*|for\s+\w+\s+in\s+{_PATH}|else|end(?:if|for)|(?:end)?raw)\s*-?%\}}",
    re.DOTALL | re.ASCII,
)

#: What of a template is a name: not a key, nor a text, nor what the language has.
_NAME = re.compile(
    rf"{_TEXT}|[.|]\s*\w+|\b(?:if|elif|else|endif|for|in|endfor|raw|endraw|is|not|and|or|defined|loop)\b|"
    r"\b([A-Za-z_]\w*)((?:\.\w+)*)"
)

#: A bracket that its line does not close: promptfoo takes such a prompt as text.
_UNCLOSED = re.compile(r"\{%[^%]*$|\{\{[^}]*$|\{#[^#]*$", re.MULTILINE)
_RAW = re.compile(r"\{%\s*raw\s*%\}.*\{%\s*endraw\s*%\}", re.DOTALL)

#: The one template that promptfoo fills in variables, at most so often.
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}", re.ASCII)
_ROUNDS = 5


def _printed(value: Any) -> str:
    """What JavaScript makes of a value in a text; what is not there is empty."""
    if value is None or isinstance(value, ChainableUndefined):
        return ""
    if isinstance(value, list):
        return ",".join(map(_printed, value))
    return "[object Object]" if isinstance(value, dict) else answer_text(value)


_ENGINE = ImmutableSandboxedEnvironment(undefined=ChainableUndefined, finalize=_printed, keep_trailing_newline=True)


def as_prompt(text: str) -> str:
    """The template of Jinja2 that means what a prompt means in promptfoo. Raises `ValueError` if there is none."""
    if _UNCLOSED.search(text) and not _RAW.search(text):
        return f"{{% raw %}}{text}{{% endraw %}}"
    _require_same(text)
    return text if _RAW.search(text) else re.sub(r"\{\{\s*([A-Za-z_][\w.]*)\s*\}\}", r"{{ \1 }}", text)


def _require_same(text: str) -> None:
    """Check that a template means the same in Jinja2. Raises `ValueError`."""
    for bracket in _ANY.findall(_RAW.sub("", text)):
        if not _SAME.fullmatch(bracket):
            raise ValueError(f"a template with {bracket[:60]}, which means something else in Jinja2, or nothing")
    try:
        _ENGINE.parse(text)
    except TemplateError as error:
        raise ValueError(f"a template that Jinja2 cannot read: {error}") from None


def rendered(value: Any, variables: Mapping[str, Any]) -> Any:
    """A text with the variables, or each text of a list; others as they are. Raises `ValueError` if that differs."""
    if isinstance(value, list):
        return [rendered(one, variables) if isinstance(one, str) else one for one in value]
    if not isinstance(value, str) or not _OPEN.search(value):
        return value
    _require_same(value)
    try:
        return printed(value, variables)
    except (TemplateError, TypeError) as error:
        raise ValueError(str(error)) from None


def resolved(given: Mapping[str, Any], *, within: bool) -> dict[str, Any]:
    """The variables of a test as promptfoo passes them on: without a last line end, and each filled with the others;
    ``within``: also the texts inside of them, as AgentV does.

    Raises `ValueError` for a template whose meaning it cannot say, or for a text without an end.
    """
    values = {name: value.removesuffix("\n") if isinstance(value, str) else value for name, value in given.items()}
    for name in [*values] * _ROUNDS:
        value = values[name]
        place = _VARIABLE.search(value) if isinstance(value, str) else None
        if place is not None and place[1] in values:
            other = values[place[1]]
            values[name] = value.replace(place[0], "null" if other is None else _printed(other), 1)
            if len(values[name]) > MAX_BODY_BYTES:
                raise ValueError(f"the variable {name} grows without end")
    return {name: _final(value, values, within=within) for name, value in values.items()}


def _final(value: Any, values: Mapping[str, Any], *, within: bool) -> Any:
    """A variable with its templates filled, unless one names what is not there; a number as JavaScript prints it."""
    if within and isinstance(value, list):
        return [_final(one, values, within=True) for one in value]
    if within and isinstance(value, dict):
        return {key: _final(one, values, within=True) for key, one in value.items()}
    if (
        isinstance(value, str)
        and not _UNCLOSED.search(value)
        and {path[0] for path in paths_in(value)} <= {"env", *values}
    ):
        return rendered(value, values)
    if isinstance(value, float) and repr(value) != (text := answer_text(value)):
        return int(value) if value.is_integer() and abs(value) < 1e15 else text
    return value


def paths_in(template: str, *, required: bool = False) -> set[tuple[str, ...]]:
    """The names that a template reads, each with the keys below it; ``required``: not those that may be missing."""
    found = set()
    for bracket in _ANY.findall(_RAW.sub("", template)):
        if not (required and re.search(r"\|\s*d(?:efault)?\(|\bdefined\b", bracket)):
            found |= {(name[1], *re.findall(r"\w+", name[2])) for name in _NAME.finditer(bracket) if name[1]}
    return {path for path in found if path[0] not in re.findall(r"\{%-?\s*for\s+(\w+)", template)}


def printed(template: str, variables: Mapping[str, Any]) -> str:
    """What a template that means the same in Jinja2 prints there."""
    return _ENGINE.from_string(template).render(variables)


def renamed(template: str, names: Collection[str]) -> str:
    """A template in which these variables have the prefix ``var_``."""

    def bracket(found: re.Match[str]) -> str:
        return _NAME.sub(lambda name: f"var_{name[0]}" if name[1] in names else name[0], found[0])

    return template if _RAW.search(template) else _ANY.sub(bracket, template)
