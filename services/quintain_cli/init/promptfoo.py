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

from quintain.config.yaml_file import Place, YamlDocument
from quintain_cli.init.carried import CarriedEvaluation, JsonDict, mapping

_KNOWN = ("description", "prompts", "providers", "targets", "tests", "defaultTest", "evaluateOptions")
_KNOWN_OF_TEST = ("description", "vars", "assert", "metadata")

#: Keys of a test that change what passes it: without them its assertions say something else.
_CHANGING_KEYS_OF_TEST = ("threshold", "assertScoringFunction", "options")

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
    carried = CarriedEvaluation(document=document, folder=folder)
    body = mapping(document.value)
    carried.leave_out_unknown(body, (), _KNOWN)
    for index, prompt in enumerate(_as_list(body.get("prompts"))):
        _add_prompt(carried, prompt, ("prompts", index))
    key = "providers" if "providers" in body else "targets"
    for index, provider in enumerate(_as_list(body.get(key))):
        _add_provider(carried, provider, (key, index))
    default = body.get("defaultTest")
    if isinstance(default, str):
        found = carried.read_tests(default.removeprefix(_FILE), ("defaultTest",))
        # What it asserts of each case is not known, if it cannot be read.
        default = found[0] if found else {"assert": [{"type": "defaultTest"}]}
    shared = mapping(default)
    carried.leave_out_unknown(shared, ("defaultTest",), _KNOWN_OF_TEST)
    # As promptfoo does: without tests the prompts are asked as they are.
    for test, place in _tests(carried, body.get("tests", {})):
        _add_test(carried, test, place, shared)
    options = mapping(body.get("evaluateOptions"))
    carried.leave_out_unknown(options, ("evaluateOptions",), ("repeat",))
    carried.repeats = options.get("repeat")
    _fill_missing_variables(carried)
    return carried


def _fill_missing_variables(carried: CarriedEvaluation) -> None:
    """Give each case an empty text for every variable that a prompt has and the case lacks, as promptfoo does."""
    names = set(re.findall(r"\{\{ ([A-Za-z_][A-Za-z0-9_]*) \}\}", json.dumps(carried.prompts)))
    carried.cases = [{**dict.fromkeys(sorted(names - case.keys()), ""), **case} for case in carried.cases]


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _add_prompt(carried: CarriedEvaluation, prompt: object, place: Place) -> None:
    label = None
    if isinstance(prompt, dict):
        carried.leave_out_unknown(prompt, place, ("id", "raw", "label"))
        label, prompt = prompt.get("label"), prompt.get("raw", prompt.get("id"))
    if not isinstance(prompt, str):
        carried.leave_out(place, "a prompt that is no text")
        return
    texts: list[str | None] = [prompt]
    if prompt.startswith(_FILE) or prompt.endswith((".txt", ".json", ".md")):
        name = prompt.removeprefix(_FILE)
        names = sorted(str(path.relative_to(carried.folder)) for path in carried.folder.glob(name)) or [name]
        texts = [carried.read_text(one, place) for one in names]
    for text in texts:
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


def _tests(carried: CarriedEvaluation, tests: object) -> Iterator[tuple[JsonDict, Place]]:
    """Yield each test with its place: of the configuration itself, or of files that it names."""
    for index, test in enumerate(_as_list(tests)):
        place: Place = ("tests", index) if isinstance(tests, list) else ("tests",)
        found = _tests_of_file(carried, test.removeprefix(_FILE), place) if isinstance(test, str) else [test]
        for one in found:
            if isinstance(one, dict):
                yield one, place
            else:
                carried.leave_out(place, "a test that is no mapping")


def _tests_of_file(carried: CarriedEvaluation, name: str, place: Place) -> list[object]:
    if not name.endswith((".csv", ".yaml", ".yml", ".json", ".jsonl")):
        carried.leave_out(place, "tests that a program makes, or of an unknown format")
        return []
    if not name.endswith(".csv"):
        return carried.read_tests(name, place)
    text = carried.read_text(name, place)
    return [_test_of_csv(carried, row, place) for row in csv.DictReader((text or "").splitlines(keepends=True))]


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
    given = {
        name: value
        for where, source in ((("defaultTest",), default), (place, test))
        for name, value in _variables(carried, source.get("vars"), (*where, "vars")).items()
    }
    # As promptfoo does, a list of values is a test for each of them.
    first = True
    for values in itertools.product(*(value if isinstance(value, list) else [value] for value in given.values())):
        variables = dict(zip(given, values, strict=True))
        rendered = {name: _rendered(value, variables) for name, value in variables.items()}
        noted = len(carried.left_out)
        assertions = [
            assertion for one, where in asserted for assertion in carried.assertions(_rendered(one, rendered), where)
        ]
        if assertions:
            changing = [key for key in _CHANGING_KEYS_OF_TEST if key in {**default, **test}]
            assertions += [{"type": "not-carried", "value": key} for key in changing]
        if not first:
            del carried.left_out[noted:]  # of the first of them
        first = False
        fields = {**mapping(test.get("metadata")), **{_field(name): value for name, value in rendered.items()}}
        identifier = {"id": test["description"]} if test.get("description") else {}
        carried.add_case({**identifier, **fields, **({"assertions": assertions} if assertions else {})})


def _variables(carried: CarriedEvaluation, listed: object, place: Place) -> JsonDict:
    """Return the variables of a test, those of files with the files' texts."""
    if listed is not None and not isinstance(listed, dict):
        carried.leave_out(place, "variables in files of their own")
    found: JsonDict = {}
    for name, value in mapping(listed).items():
        text = value
        if isinstance(value, str) and value.startswith(_FILE):
            text = carried.read_text(value.removeprefix(_FILE), (*place, name))
        found[str(name)] = text
    return found


def _rendered(value: Any, variables: JsonDict) -> Any:
    """Replace ``{{ name }}`` in all texts of a value; a name without a variable stays as it is."""
    if isinstance(value, dict):
        return {key: _rendered(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [_rendered(one, variables) for one in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda found: _text(variables[found[1]]) if found[1] in variables else found[0], value)


def _text(value: object) -> str:
    return (
        value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    )
