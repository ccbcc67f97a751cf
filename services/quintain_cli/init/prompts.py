"""Prompts of promptfoo and AgentV as prompts of ours, and the templates of Nunjucks in them and in assertions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quintain.config.yaml_file import parse_yaml
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.errors import ConfigError
from quintain.runtime.text_files import read_text
from quintain_cli.init.carried import FILE_PREFIX, At, CarriedEvaluation, JsonDict, mapping, read_document, read_items
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


#: A variable that is printed as JSON where JSON has a value: as a text of JSON that holds it.
_DUMPED = re.compile(r"(:\s*)\{\{-?\s*([\w.]+)\s*\|\s*dump\s*-?\}\}")

#: A value of YAML that is a template without quotes.
_UNQUOTED = re.compile(r"^(\s*(?:- )?\w+:[ \t]+)(\{\{.*)$", re.MULTILINE)

_ROLES = ("system", "user", "assistant")


def add_prompts(carried: CarriedEvaluation, listed: object, at: At) -> None:
    """Add the prompts: of one text, of a list, or of a mapping from texts to labels."""
    pairs = [({"raw": key, "label": label}, at.under(key)) for key, label in mapping(listed).items()]
    for given, place in pairs or at.items(listed):
        fields = given if isinstance(given, dict) else {"raw": given}
        carried.leave_out_unknown(fields, place, ("id", "raw", "label", "file", "path", "messages", "prompt"))
        file = fields.get("file", fields.get("path"))
        keys = () if fields.keys() & {"function", "function_file", "command"} else ("raw", "messages", "prompt", "id")
        prompt = next((fields[key] for key in keys if fields.get(key)), None)
        prompt = prompt if file is None else f"{FILE_PREFIX}{str(file).removeprefix(FILE_PREFIX)}"
        if isinstance(prompt, list):
            _add_messages(carried, prompt, fields.get("label"), place)
        elif not isinstance(prompt, str):
            carried.leave_out(place, "a prompt that is no text")
        elif (paths := carried.files(prompt, place)) is None:
            _add_text(carried, prompt, fields.get("label"), place)
        else:
            for path in paths:
                for text, label, where in _texts(carried, path, place):
                    _add_text(carried, text, label or fields.get("label"), where)


def _texts(carried: CarriedEvaluation, path: Path, at: At) -> Iterator[tuple[str, object, At]]:
    """Iterate over the prompts of a file as promptfoo reads it, each with its label and where it stands."""
    whole = At(path, lambda _: 1)
    match path.suffix:
        case ".jsonl":
            for row, place in read_items(path):
                yield json.dumps(row, ensure_ascii=False), None, place
        case ".csv":
            yield from _rows(path)
        case ".yaml" | ".yml":
            yield _as_json(path), None, whole
        case ".txt":
            parts = [part.strip() for part in re.split(r"^[^\S\n]*---[^\S\n]*$", read_text(path), flags=re.MULTILINE)]
            yield from ((part, None, whole) for part in [*filter(None, parts)] or [""])
        case ".md" | ".j2" | ".json":
            yield read_text(path), None, whole
        case _:
            carried.leave_out(at, f"{path.name}: a file that promptfoo does not read as a prompt")


def _rows(path: Path) -> Iterator[tuple[str, object, At]]:
    """Iterate over the prompts of CSV: those of its column prompt, or without a comma each line."""
    lines = read_text(path).split("\n")
    if any("," in line for line in lines):
        for row, place in read_items(path):
            if (text := row.get("prompt", "").strip()) != "":
                yield text, row.get("label", "").strip(), place
        return
    for number, line in enumerate(lines, start=1):
        if line.strip() and not (number == 1 and line.strip().lower() == "prompt"):
            yield line, None, At(path, lambda _, number=number: number)  # type: ignore[misc]


def _as_json(path: Path) -> str:
    """The prompt in a file of YAML, as JSON; as it is where only its filled template is YAML."""
    try:
        return json.dumps(read_document(path)[0], ensure_ascii=False, default=str)
    except ConfigError:
        if (text := read_text(path)).lstrip().startswith("- role:") and "{{" in text:
            return text
        raise


def _add_text(carried: CarriedEvaluation, text: str, label: object, at: At) -> None:
    try:
        messages = _conversation(text)
        if messages is not None:
            _add_messages(carried, messages, label, at)
        elif text.strip():
            carried.add_prompt({"user": as_prompt(carried.plain(text))}, label)
        else:
            carried.leave_out(at, "an empty prompt")
    except ValueError as reason:
        carried.leave_out(at, reason)


def _conversation(text: str) -> list[Any] | None:
    """The messages of a prompt that is a conversation of JSON or YAML; None of a text. Raises `ValueError`."""
    start, end = text.strip()[:200], text.strip()[-1:]
    is_yaml, is_json = start.startswith("- role:"), re.match(r"\{(?![{%#])|\[\s*[{\[\"]", start) is not None
    if not is_yaml and not (is_json and end in ("}", "]")):
        return None
    changed = _UNQUOTED.sub(lambda found: found[1] + json.dumps(found[2]), text) if is_yaml else text
    for one in (text, changed if is_yaml else _DUMPED.sub(r'\1"{{ \2 }}"', text)):
        try:
            value = parse_yaml(one, "the prompt").value if is_yaml else json.loads(one)
        except (ValueError, ConfigError):
            continue
        if isinstance(value, list) and all("role" in mapping(each) for each in value):
            return value
        raise ValueError("JSON or YAML that is no list of messages")
    raise ValueError("a conversation that is none before its template is filled")


def _add_messages(carried: CarriedEvaluation, messages: list[Any], label: object, at: At) -> None:
    carried_messages: list[JsonDict] = []
    for number, fields in enumerate(map(mapping, messages), start=1):
        content, extra = fields.get("content"), sorted(fields.keys() - {"role", "content"})
        if isinstance(content, list) and len(content) == 1 and mapping(content[0]).keys() == {"type", "text"}:
            content = content[0]["text"]
        if fields.get("role") not in _ROLES or not isinstance(content, str) or not content or extra:
            what = f"with {', '.join(extra)}" if extra else f"of {fields.get('role')} whose content is no text"
            carried.leave_out(at, f"its message {number} {what}, which a prompt has no place for")
            return
        try:
            carried_messages.append({"role": fields["role"], "content": as_prompt(carried.plain(content))})
        except ValueError as reason:
            carried.leave_out(at, f"its message {number}: {reason}")
            return
    carried.add_prompt({"messages": carried_messages}, label)
