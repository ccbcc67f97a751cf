"""Reads an evaluation file of AgentV, and the ``targets.yaml`` beside or above it, as an evaluation of ours.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: AgentV 4.42.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintain.config.yaml_file import Place, YamlDocument, read_yaml_document
from quintain_cli.init.carried import CarriedEvaluation, JsonDict, mapping

_KNOWN = ("$schema", "name", "description", "execution", "tests", "evalcases", "assertions", "target")
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
_SETTINGS = {"model": "model", "api_key": "api_key", "base_url": "base_url", "temperature": "temperature",
             "max_output_tokens": "max_tokens", "judge_target": "judge_target", "grader_target": "judge_target",
             "workers": "max_concurrency"}  # fmt: skip
_PLACEHOLDERS = {"{PROMPT_FILE}": "{prompt_file}", "{OUTPUT_FILE}": "{output_file}"}


def read_agentv(document: YamlDocument, folder: Path) -> CarriedEvaluation:
    """Read an evaluation of AgentV; targets are looked for from ``folder`` upwards. Raises `ConfigError` for theirs."""
    body = mapping(document.value)
    key = "tests" if "tests" in body else "evalcases"
    carried = CarriedEvaluation(document=document)
    carried.leave_out_unknown(body, (), _KNOWN)
    execution = mapping(body.get("execution"))
    carried.leave_out_unknown(execution, ("execution",), ("target", "targets"))
    wanted = execution.get("targets") or execution.get("target") or body.get("target")
    _add_targets(carried, folder, [wanted] if isinstance(wanted, str) else wanted)
    shared = _assertions(carried, body.get("assertions"), ("assertions",), suite=True)
    if not isinstance(body.get(key), list):
        carried.leave_out((key,), "tests in a file of their own")
    for index, test in enumerate(body[key] if isinstance(body.get(key), list) else []):
        if isinstance(test, dict):
            _add_test(carried, test, (key, index), shared)
        else:
            carried.leave_out((key, index), "a test in a file of its own")
    return carried


def _add_targets(carried: CarriedEvaluation, folder: Path, wanted: list[str] | None) -> None:
    """Add the targets of the nearest ``targets.yaml``; only those wanted are evaluated."""
    candidates = [above / name for above in (folder, *folder.resolve().parents) for name in _TARGET_FILES]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        carried.leave_out(("execution",), "no targets.yaml beside or above this file; the target mock stands in")
        return
    document = read_yaml_document(path)
    listed = mapping(document.value).get("targets")
    own = CarriedEvaluation(document=document)
    for index, target in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(target, dict) and isinstance(target.get("name"), str):
            _add_target(own, target, ("targets", index))
    carried.targets = own.targets
    carried.left_out += own.left_out
    evaluated = [name for name in wanted or ["default"] if name in own.targets]
    carried.evaluated = evaluated or None


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


def _add_test(carried: CarriedEvaluation, test: JsonDict, place: Place, shared: list[JsonDict]) -> None:
    carried.leave_out_unknown(test, place, _KNOWN_OF_TEST)
    asked = test.get("input", test.get("input_messages"))
    expected = _text(test.get("expected_output", test.get("expected_messages")))
    criteria = test.get("criteria", test.get("expected_outcome"))
    assertions = [*shared, *_assertions(carried, test.get("assertions"), (*place, "assertions"))]
    for rubric in test["rubrics"] if isinstance(test.get("rubrics"), list) else []:
        text = rubric if isinstance(rubric, str) else mapping(rubric).get("outcome", mapping(rubric).get("description"))
        assertions.append({"type": "judge", "value": text})
    if not assertions and criteria:
        # As AgentV does: without assertions a model judges by the criteria.
        assertions = [{"type": "judge", "value": criteria}]
    case: JsonDict = {"id": test.get("id")}
    if isinstance(asked, str):
        case["question"] = asked
    else:
        messages = _messages(carried, asked, place)
        if not messages:
            carried.leave_out(place, "a test without a text to ask")
            return
        case["messages"] = messages
    case |= {} if expected is None else {"expected": expected}
    case |= {} if criteria is None else {"criteria": criteria}
    case |= mapping(test.get("metadata"))
    carried.add_case({**case, **({"assertions": assertions} if assertions else {})})


def _assertions(carried: CarriedEvaluation, listed: object, place: Place, *, suite: bool = False) -> list[JsonDict]:
    """Convert assertions. A program that grades every test (``suite``) becomes a grader of its own."""
    found = []
    for index, one in enumerate(listed if isinstance(listed, list) else []):
        where = (*place, index)
        if suite and isinstance(one, dict) and one.get("type") == "code-grader":
            carried.graders.append(_program(one, len(carried.graders) + 1))
            continue
        if isinstance(one, str):
            # A text is a criterion, which a model judges.
            found.append({"type": "judge", "value": one})
            continue
        any_case = isinstance(one, dict) and "contains" in str(one.get("type")) and not one.get("case_sensitive")
        assertion = carried.assertion(one, where, any_case=any_case)
        if assertion is not None:
            found.append(assertion)
    return found


def _program(one: JsonDict, number: int) -> JsonDict:
    command: Any = one.get("command", one.get("path"))
    limits = mapping(one.get("target"))
    return {
        "name": one.get("name") or f"program-{number}",
        "command": ["sh", "-c", command] if isinstance(command, str) else command,
        **({"target": limits} if limits else {}),
    }


def _messages(carried: CarriedEvaluation, asked: object, place: Place) -> list[JsonDict]:
    messages = []
    for index, message in enumerate(asked if isinstance(asked, list) else []):
        content = _text([message]) if isinstance(message, dict) else None
        if content is None:
            carried.leave_out((*place, "input", index), "a message whose content is in a file")
        else:
            messages.append({"role": message["role"], "content": content})
    return messages


def _text(value: object) -> str | None:
    """Return the text of an output or of the last message; None if it has none, or if it is in a file."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
        if isinstance(value, list):
            parts = [part.get("value", part.get("text")) if part.get("type") == "text" else None for part in value]
            return None if None in parts else "\n".join(str(part) for part in parts)
    return value if isinstance(value, str) else None
