"""Reads a promptfoo configuration (``promptfooconfig.yaml``) as an evaluation of ours.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: promptfoo 0.123.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quintain.config.yaml_file import Place, YamlDocument, read_yaml_document
from quintain_cli.init.carried import CarriedEvaluation, JsonDict, mapping

_KNOWN = ("description", "prompts", "providers", "targets", "tests", "defaultTest", "evaluateOptions")
_KNOWN_OF_TEST = ("description", "vars", "assert", "metadata")

#: Fields of a case that have a meaning of their own: a variable of this name gets another one.
_RESERVED = frozenset({"id", "messages", "settings", "system_prompt", "assertions", "expected"})

_FILE = "file://"
_VARIABLE = re.compile(r"\{\{-?\s*([A-Za-z_][A-Za-z0-9_.]*)\s*-?\}\}")
_TAG = re.compile(r"\{%|\{#|\{\{[^}]*[|(][^}]*\}\}")

#: promptfoo's name of a provider's setting → ours.
_SETTINGS = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "top_p": "settings.top_p",
    "frequency_penalty": "settings.frequency_penalty",
    "presence_penalty": "settings.presence_penalty",
    "seed": "settings.seed",
    "stop": "settings.stop",
    "reasoning_effort": "settings.reasoning_effort",
    "apiBaseUrl": "base_url",
}

#: The beginning of a provider's id → the provider, the variable of its key, and its base URL.
_PROVIDERS: Mapping[str, tuple[str, str | None, str | None]] = {
    "openai": ("openai", "OPENAI_API_KEY", None),
    "anthropic": ("anthropic", "ANTHROPIC_API_KEY", None),
    "openrouter": ("openai", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "ollama": ("openai", None, "http://127.0.0.1:11434/v1"),
    "mistral": ("openai", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    "groq": ("openai", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
}

#: What may stand between a provider's name and its model.
_KINDS = frozenset({"chat", "messages", "responses", "completion"})


def read_promptfoo(document: YamlDocument, folder: Path) -> CarriedEvaluation:
    """Read a promptfoo configuration; files that it names are in ``folder``. Raises `ConfigError` for one of them."""
    carried = CarriedEvaluation(document=document)
    body = mapping(document.value)
    carried.leave_out_unknown(body, (), _KNOWN)
    for index, prompt in enumerate(_as_list(body.get("prompts"))):
        _add_prompt(carried, prompt, ("prompts", index), folder)
    key = "providers" if "providers" in body else "targets"
    for index, provider in enumerate(_as_list(body.get(key))):
        _add_provider(carried, provider, (key, index))
    default = body.get("defaultTest")
    if isinstance(default, str):
        carried.leave_out(("defaultTest",), "a default test in a file of its own")
    shared = mapping(default)
    carried.leave_out_unknown(shared, ("defaultTest",), _KNOWN_OF_TEST)
    for test, place in _tests(carried, body.get("tests"), folder):
        _add_test(carried, test, place, shared)
    options = mapping(body.get("evaluateOptions"))
    carried.leave_out_unknown(options, ("evaluateOptions",), ("repeat",))
    carried.repeats = options.get("repeat")
    return carried


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _add_prompt(carried: CarriedEvaluation, prompt: object, place: Place, folder: Path) -> None:
    label = None
    if isinstance(prompt, dict):
        carried.leave_out_unknown(prompt, place, ("id", "raw", "label"))
        label, prompt = prompt.get("label"), prompt.get("raw", prompt.get("id"))
    if not isinstance(prompt, str):
        carried.leave_out(place, "a prompt that is no text")
        return
    text: str | None = prompt
    if prompt.startswith(_FILE) or prompt.endswith((".txt", ".json", ".md")):
        text = _read(carried, prompt.removeprefix(_FILE), place, folder)
    for part in (text or "").split("\n---\n"):
        _add_template(carried, part.strip(), label, place)


def _add_template(carried: CarriedEvaluation, text: str, label: str | None, place: Place) -> None:
    if not text:
        return
    if _TAG.search(text):
        carried.leave_out(place, "a prompt with tags, filters or calls of Nunjucks; only {{ name }} is replaced")
        return
    named = {} if label is None else {"name": re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "prompt"}
    messages = _messages(text)
    if messages is not None:
        carried.prompts.append({**named, "messages": messages})
        return
    template = _VARIABLE.sub(lambda found: f"{{{{ {_field(found[1])} }}}}", text)
    carried.prompts.append({**named, "user": template} if named else template)


def _messages(text: str) -> list[JsonDict] | None:
    """Return the messages of a prompt that is a JSON conversation; None for all others."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, list) or not all(isinstance(one, dict) and "role" in one for one in value):
        return None
    return [
        {"role": one["role"], "content": _VARIABLE.sub(lambda found: f"{{{{ {_field(found[1])} }}}}", one["content"])}
        for one in value
    ]


def _field(name: str) -> str:
    return f"var_{name}" if name.partition(".")[0] in _RESERVED else name


def _read(carried: CarriedEvaluation, name: str, place: Place, folder: Path) -> str | None:
    """Return the text of a file that the configuration names; None, with a note, if it cannot be carried."""
    if name.endswith((".py", ".js", ".ts", ".mjs", ".cjs")) or ":" in name:
        carried.leave_out(place, "a program that makes the text")
        return None
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        carried.leave_out(place, f"{name} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}")
        return None


def _add_provider(carried: CarriedEvaluation, provider: object, place: Place) -> None:
    """Add the target of a provider: its id, or a mapping with its id, label and config."""
    if isinstance(provider, dict) and "id" not in provider and len(provider) == 1:
        (only,) = provider.items()
        provider = {"id": only[0], **mapping(only[1])}
    details = mapping(provider)
    carried.leave_out_unknown(details, place, ("id", "label", "config"))
    identifier, label = details.get("id") if details else provider, details.get("label")
    if not isinstance(identifier, str):
        carried.leave_out(place, "a provider without an id")
    elif identifier == "echo":
        carried.add_target(label or "echo", {"provider": "mock"})
    else:
        target = _target(identifier, mapping(details.get("config")))
        if target is None:
            carried.leave_out(place, f"no counterpart of the provider {identifier}; add a target to quintain.yaml")
            return
        carried.leave_out_unknown(mapping(details.get("config")), (*place, "config"), (*_SETTINGS, "apiKeyEnvar"))
        carried.add_target(label or target["model"], target)


def _target(identifier: str, config: JsonDict) -> JsonDict | None:
    """Return the target of a provider's id, such as ``openai:chat:gpt-4o``; None if it has no counterpart."""
    family, *rest = identifier.split(":")
    kind = rest.pop(0) if rest and rest[0] in _KINDS else "chat"
    if family not in _PROVIDERS or not rest or kind == "completion":
        return None
    provider, variable, base_url = _PROVIDERS[family]
    variable = config.get("apiKeyEnvar", variable)
    target: JsonDict = {
        "provider": provider,
        "model": ":".join(rest),
        **({} if base_url is None else {"base_url": base_url}),
        **({"api": "responses"} if kind == "responses" else {}),
        **({} if variable is None else {"api_key": f"${{{{ {variable} }}}}"}),
    }
    for key, value in config.items():
        if key in _SETTINGS:
            section, _, name = _SETTINGS[key].rpartition(".")
            (target.setdefault(section, {}) if section else target)[name] = value
    return target


def _tests(carried: CarriedEvaluation, tests: object, folder: Path) -> Iterator[tuple[JsonDict, Place]]:
    """Yield each test with its place: of the configuration itself, or of files that it names."""
    for index, test in enumerate(_as_list(tests)):
        place: Place = ("tests", index) if isinstance(tests, list) else ("tests",)
        if isinstance(test, dict):
            yield test, place
        elif isinstance(test, str):
            yield from ((one, place) for one in _tests_of_file(carried, test.removeprefix(_FILE), place, folder))
        else:
            carried.leave_out(place, "a test that is no mapping")


def _tests_of_file(carried: CarriedEvaluation, name: str, place: Place, folder: Path) -> Iterator[JsonDict]:
    if not name.endswith((".csv", ".yaml", ".yml", ".json", ".jsonl")):
        carried.leave_out(place, "tests that a program makes, or of an unknown format")
        return
    text = _read(carried, name, place, folder)
    if text is None:
        return
    if name.endswith(".csv"):
        yield from (_test_of_csv(carried, row, place) for row in csv.DictReader(text.splitlines()))
    elif name.endswith(".jsonl"):
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    else:
        document: YamlDocument = read_yaml_document(folder / name)
        yield from (test for test in _as_list(document.value) if isinstance(test, dict))


def _test_of_csv(carried: CarriedEvaluation, row: Mapping[str, str], place: Place) -> JsonDict:
    """Convert a row: columns are variables, ``__expected`` is an assertion such as ``contains: Paris`` or a text."""
    assertions = []
    for column, text in row.items():
        if not column.startswith("__expected") or not text:
            continue
        kind, colon, value = text.partition(":")
        is_typed = colon and re.fullmatch(r"[a-z-]+", kind)
        assertions.append({"type": kind, "value": value.strip()} if is_typed else {"type": "equals", "value": text})
    for column in row:
        if column.startswith("__") and not column.startswith(("__expected", "__description")):
            carried.leave_out(place, f"the column {column}")
    variables = {column: text for column, text in row.items() if not column.startswith("__")}
    return {"description": row.get("__description"), "vars": variables, "assert": assertions}


def _add_test(carried: CarriedEvaluation, test: JsonDict, place: Place, default: JsonDict) -> None:
    carried.leave_out_unknown(test, place, _KNOWN_OF_TEST)
    asserted = [
        (one, (*where, "assert", index))
        for where, source in ((("defaultTest",), default), (place, test))
        for index, one in enumerate(_as_list(source.get("assert")))
    ]
    assertions = [assertion for one, where in asserted if (assertion := carried.assertion(one, where)) is not None]
    given = {**mapping(default.get("vars")), **mapping(test.get("vars"))}
    variables: dict[str, list[object]] = {}
    for name, value in given.items():
        if isinstance(value, str) and value.startswith(_FILE):
            carried.leave_out((*place, "vars", name), "a variable whose value is in a file")
        else:
            variables[_field(str(name))] = value if isinstance(value, list) else [value]
    # As promptfoo does, a list of values is a test for each of them.
    for values in itertools.product(*variables.values()):
        fields: JsonDict = {**mapping(test.get("metadata")), **dict(zip(variables, values, strict=True))}
        identifier = {"id": test["description"]} if test.get("description") else {}
        carried.add_case({**identifier, **fields, **({"assertions": assertions} if assertions else {})})
