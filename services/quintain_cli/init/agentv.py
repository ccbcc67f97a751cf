"""Reads an evaluation file of AgentV, and the ``targets.yaml`` beside or above it, as an evaluation of ours.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: AgentV 4.42.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quintain.config.yaml_file import Place, YamlDocument, read_yaml
from quintain_cli.init.carried import CarriedEvaluation, JsonDict, mapping

_KNOWN = ("$schema", "name", "description", "execution", "tests", "evalcases", "assertions", "target", "input")
_KNOWN_OF_TEST = (
    "id", "input", "input_messages", "expected_output", "expected_messages", "criteria", "expected_outcome",
    "assertions", "rubrics", "conversation_id", "metadata",
)  # fmt: skip

#: Where AgentV looks for its targets, in each folder from the evaluation's upwards.
_TARGET_FILES = ("targets.yaml", "targets.yml", ".agentv/targets.yaml", ".agentv/targets.yml")

#: AgentV's provider → ours, and its base URL.
_PROVIDERS: Mapping[str, tuple[str, str | None]] = {
    "openai": ("openai", None),
    "anthropic": ("anthropic", None),
    "openrouter": ("openai", "https://openrouter.ai/api/v1"),
    "gemini": ("openai", "https://generativelanguage.googleapis.com/v1beta/openai/"),
}
_SETTINGS = {"model": "model", "api_key": "api_key", "base_url": "base_url", "endpoint": "base_url",
             "temperature": "temperature",
             "max_output_tokens": "max_tokens", "judge_target": "judge_target", "grader_target": "judge_target",
             "workers": "max_concurrency"}  # fmt: skip
_PLACEHOLDERS = {"{PROMPT_FILE}": "{prompt_file}", "{OUTPUT_FILE}": "{output_file}"}


def read_agentv(document: YamlDocument, folder: Path) -> CarriedEvaluation:
    """Read an evaluation of AgentV; targets are looked for from ``folder`` upwards. Raises `ConfigError` for theirs."""
    body = mapping(document.value)
    key = "tests" if "tests" in body else "evalcases"
    carried = CarriedEvaluation(document=document, folder=folder)
    carried.leave_out_unknown(body, (), _KNOWN)
    execution = mapping(body.get("execution"))
    carried.leave_out_unknown(execution, ("execution",), ("target", "targets"))
    wanted = execution.get("targets") or execution.get("target") or body.get("target")
    _add_targets(carried, folder, [wanted] if isinstance(wanted, str) else wanted)
    shared = _assertions(carried, body.get("assertions"), ("assertions",), suite=True)
    before = _messages(carried, body["input"], ("input",)) if "input" in body else []
    if before is None:
        carried.leave_out(("input",), "an input of all tests that is not all text, and so each of them")
    for test, place in _tests(carried, body[key], (key,)):
        if isinstance(test, dict):
            _add_test(carried, test, place, shared, before)
        else:
            carried.leave_out(place, "a test that is no mapping")
    return carried


def _tests(carried: CarriedEvaluation, listed: object, place: Place) -> Iterator[tuple[object, Place]]:
    """Yield each test with its place; a text names a file of tests."""
    if isinstance(listed, str):
        yield from ((test, place) for test in carried.read_tests(listed.removeprefix("file://"), place))
    for index, test in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(test, str):
            yield from _tests(carried, test, (*place, index))
        else:
            yield test, (*place, index)


def _add_targets(carried: CarriedEvaluation, folder: Path, wanted: list[str] | None) -> None:
    """Add the targets of the nearest ``targets.yaml``; only those wanted are evaluated."""
    candidates = [above / name for above in (folder, *folder.resolve().parents) for name in _TARGET_FILES]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        carried.leave_out(("execution",), "no targets.yaml beside or above this file")
        return
    document = read_yaml(path)
    listed = mapping(document.value).get("targets")
    own = CarriedEvaluation(document=document, folder=path.parent)
    for index, target in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(target, dict) and isinstance(target.get("name"), str):
            _add_target(own, target, ("targets", index))
    for target in own.targets.values():
        if "judge_target" in target and target["judge_target"] not in own.targets:
            own.leave_out(("targets",), f"the judge {target.pop('judge_target')}, which could not be carried")
    carried.evaluated = [name for name in wanted or ["default"] if name in own.targets]
    # A target that nobody asks would still need its variables, and stop the run without them.
    used = {*carried.evaluated, *(own.targets[name].get("judge_target") for name in carried.evaluated)}
    for name in [name for name in own.targets if name not in used]:
        own.leave_out(("targets",), f"the target {name}, which this evaluation does not use")
    carried.targets = {name: target for name, target in own.targets.items() if name in used}
    carried.left_out += [dataclasses.replace(note, file=path.name) for note in own.left_out]


def _add_target(own: CarriedEvaluation, target: JsonDict, place: Place) -> None:
    name, provider = target["name"], str(target.get("provider"))
    if provider in ("mock", "cli"):
        _add_local_target(own, target, place)
        return
    if provider not in _PROVIDERS:
        own.leave_out(place, f"no counterpart of the provider {provider} (target {name})")
        return
    ours, base_url = _PROVIDERS[provider]
    own.leave_out_unknown(target, place, (*_SETTINGS, "name", "provider"))
    settings = {_SETTINGS[key]: value for key, value in target.items() if key in _SETTINGS}
    own.add_target(name, {"provider": ours, **({} if base_url is None else {"base_url": base_url}), **settings})


def _add_local_target(own: CarriedEvaluation, target: JsonDict, place: Place) -> None:
    """Add a target of the providers ``mock`` and ``cli``, which need no key."""
    name, judge = target["name"], target.get("grader_target") or target.get("judge_target")
    kept: JsonDict = {key: target[key] for key in ("response", "cwd") if key in target}
    kept |= {"judge_target": judge} if judge else {}
    own.leave_out_unknown(
        target, place, ("name", "provider", "command", "response", "cwd", "judge_target", "grader_target")
    )
    if target["provider"] == "mock":
        own.add_target(name, {"provider": "mock", **kept})
        return
    command = target.get("command")
    words = shlex.split(command) if isinstance(command, str) else list(command or [])
    if not words or any(word.startswith("{") and word not in _PLACEHOLDERS for word in words):
        own.leave_out(
            (*place, "command"), f"a command with {{PROMPT}} or {{FILES}} (target {name}): use {{PROMPT_FILE}}"
        )
        return
    own.add_target(name, {"provider": "command", "command": [_PLACEHOLDERS.get(word, word) for word in words], **kept})


def _add_test(
    carried: CarriedEvaluation, test: JsonDict, place: Place, shared: list[JsonDict], before: list[JsonDict] | None
) -> None:
    """Add a test. ``shared`` and ``before``: the assertions and the input's messages of all tests."""
    carried.leave_out_unknown(test, place, _KNOWN_OF_TEST)
    asked = test.get("input", test.get("input_messages"))
    expected = _text(carried, test.get("expected_output", test.get("expected_messages")), (*place, "expected_output"))
    if expected is None and {"expected_output", "expected_messages"} & test.keys():
        carried.leave_out((*place, "expected_output"), "an expected output that is no text")
    criteria = test.get("criteria", test.get("expected_outcome"))
    own = _assertions(carried, test.get("assertions"), (*place, "assertions"), criteria=criteria)
    assertions = [*own, *shared]
    for rubric in test["rubrics"] if isinstance(test.get("rubrics"), list) else []:
        text = rubric if isinstance(rubric, str) else mapping(rubric).get("outcome", mapping(rubric).get("description"))
        assertions.append({"type": "judge", "value": text})
    if not assertions and criteria:
        # As AgentV does: without assertions a model judges by the criteria.
        assertions = [{"type": "judge", "value": criteria}]
    case: JsonDict = {**mapping(test.get("metadata")), "id": test.get("id")}
    messages = _messages(carried, asked, (*place, "input"))
    if messages is None or before is None:
        carried.leave_out(place, "a test whose input is not all text")
        return
    case |= {"question": asked} if isinstance(asked, str) and not before else {"messages": [*before, *messages]}
    case |= {} if expected is None else {"expected": expected}
    case |= {} if criteria is None else {"criteria": criteria}
    carried.add_case({**case, **({"assertions": assertions} if assertions else {})})


def _assertions(
    carried: CarriedEvaluation, listed: object, place: Place, *, suite: bool = False, criteria: object = None
) -> list[JsonDict]:
    """Convert assertions. A program that grades every test (``suite``) becomes a grader of its own."""
    found: list[JsonDict] = []
    for index, one in enumerate(listed if isinstance(listed, list) else []):
        where = (*place, index)
        if suite and isinstance(one, dict) and one.get("type") == "code-grader":
            carried.graders.append(_program(one, len(carried.graders) + 1))
        elif isinstance(one, str):
            # A text is a criterion, which a model judges.
            found.append({"type": "judge", "value": one})
        else:
            found += carried.assertions(one, where, criteria=criteria)
    return found


def _program(one: JsonDict, number: int) -> JsonDict:
    command: Any = one.get("command", one.get("path"))
    limits = mapping(one.get("target"))
    return {
        "name": one.get("name") or f"program-{number}",
        "command": ["sh", "-c", command] if isinstance(command, str) else command,
        **({"target": limits} if limits else {}),
    }


def _messages(carried: CarriedEvaluation, asked: object, place: Place) -> list[JsonDict] | None:
    """Return the messages of an input; None, with a note, if one of them has no text."""
    if isinstance(asked, str | dict):
        text = asked if isinstance(asked, str) else json.dumps(asked, ensure_ascii=False, indent=2, default=str)
        return [{"role": "user", "content": text}]
    messages = []
    for index, message in enumerate(asked if isinstance(asked, list) else []):
        content = _text(carried, [message], (*place, index)) if isinstance(message, dict) else None
        if content is None:
            return None
        carried.leave_out_unknown(message, (*place, index), ("role", "content"))
        messages.append({"role": message["role"], "content": content})
    return messages or None


def _text(carried: CarriedEvaluation, value: object, place: Place) -> str | None:
    """Return the text of an output or of the last message, with the files that it names; None if it has none."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
        if isinstance(value, list):
            parts = [_part(carried, part, place) for part in value]
            return None if None in parts else "\n\n".join(str(part) for part in parts)
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _part(carried: CarriedEvaluation, part: object, place: Place) -> str | None:
    """Return a part of a message as text; a file as AgentV writes it into the prompt."""
    if isinstance(part, str):
        return part
    kind, value = (mapping(part).get(key) for key in ("type", "value"))
    if kind == "file" and isinstance(value, str):
        text = carried.read_text(value, place)
        return None if text is None else f'<file path="{value}">\n{text.strip()}\n</file>'
    text = value if isinstance(value, str) else mapping(part).get("text")
    if kind != "text" or not isinstance(text, str):
        carried.leave_out(place, f"a part of a message of type {kind}")
        return None
    return text
