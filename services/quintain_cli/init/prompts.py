"""Prompts of promptfoo and AgentV as prompts of ours: texts, and the files that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintain.config.yaml_file import parse_yaml
from quintain.errors import ConfigError
from quintain.runtime.text_files import read_text
from quintain_cli.init.carried import FILE_PREFIX, At, CarriedEvaluation, JsonDict, mapping, read_document, read_items
from quintain_cli.init.nunjucks import as_prompt

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
            for part in re.split(r"^[^\S\n]*---[^\S\n]*$", read_text(path), flags=re.MULTILINE):
                yield from [(part.strip(), None, whole)] if part.strip() else []
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
