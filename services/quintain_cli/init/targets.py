"""Providers of promptfoo and targets of AgentV as targets of ours."""

from __future__ import annotations

import re
import shlex
from typing import Any

from quintain.config.vendors import KEY_VARIABLES, VENDORS
from quintain_cli.init.carried import FILE_PREFIX, At, CarriedEvaluation, Found, JsonDict, mapping, read_document

#: The name of a setting there → ours.
_SETTINGS = {
    "model": "model", "temperature": "temperature", "max_tokens": "max_tokens", "top_p": "settings.top_p",
    "frequency_penalty": "settings.frequency_penalty", "presence_penalty": "settings.presence_penalty",
    "seed": "settings.seed", "stop": "settings.stop", "reasoning_effort": "settings.reasoning_effort",
    "apiBaseUrl": "base_url",
}  # fmt: skip
_SETTINGS_OF_AGENTV = {
    **_SETTINGS, "max_output_tokens": "max_tokens", "base_url": "base_url", "endpoint": "base_url",
    "api_key": "api_key", "workers": "max_concurrency", "api_format": "api",
}  # fmt: skip

#: The beginning of a provider's id → our name of the vendor, where that is another one.
_VENDORS_THERE = {"gemini": "google", "togetherai": "together"}

#: What may stand between a provider's name and its model, and the API that it means.
_KINDS = {"chat": "", "messages": "", "responses": "responses", "embedding": "embeddings", "embeddings": "embeddings"}
_OTHER_KINDS = ("completion", "realtime", "image", "assistant", "moderation", "transcription", "video", "speech")

#: A variable of the environment, as the whole of a value.
_VARIABLE = re.compile(r"\s*\{\{-?\s*env\.(\w+)\s*-?\}\}\s*")

#: Where AgentV looks for its targets, in each folder from the evaluation's upwards.
_TARGET_FILES = (
    "targets.yaml", "targets.yml", ".agentv/targets.yaml", ".agentv/targets.yml",
    ".agentv/config.yaml", ".agentv/config.yml", ".agentv/providers.yaml", ".agentv/providers.yml",
)  # fmt: skip
_PLACEHOLDERS = {"{PROMPT_FILE}": "{prompt_file}", "{OUTPUT_FILE}": "{output_file}"}


def add_providers(carried: CarriedEvaluation, listed: object, at: At) -> None:
    """Add the targets of providers, which are asked: of one, of a list, or of files that are named.

    AgentV's are names of targets in the nearest of its files. One that nobody asks would need its variables, too, and
    stop the run without them.
    """
    if carried.is_agentv:
        folders = (carried.folder, *carried.folder.resolve().parents)
        path = next((one for folder in folders for name in _TARGET_FILES if (one := folder / name).is_file()), None)
        carried.known_targets = {} if path is None else _named_targets(*read_document(path))
    for one, place in at.items(listed):
        is_file = isinstance(one, str) and one.startswith(FILE_PREFIX)
        for provider, where in carried.items(one, place) if is_file else [(one, place)]:
            name = add_provider(carried, provider, where)
            carried.evaluated += [] if name is None or name in carried.evaluated else [name]


def _named_targets(value: object, at: At) -> dict[str, Found]:
    """The targets of a file, or of the file that it names, by their names."""
    if isinstance(value, dict):
        key = "targets" if "targets" in value else "providers"
        value, at = value.get(key), at.under(key)
    if isinstance(value, str):
        return _named_targets(*read_document(at.file.parent / value.removeprefix(FILE_PREFIX)))
    return {str(mapping(one).get("name", mapping(one).get("label"))): (one, place) for one, place in at.items(value)}


def add_provider(carried: CarriedEvaluation, provider: object, at: At, *, is_judge: bool = False) -> str | None:
    """Add the target of a provider: its id, the name of AgentV's, or one that is written out; its name here.

    None, with a note, of one without a counterpart. ``is_judge``: it judges, and has no judge itself.
    """
    name = None
    if carried.is_agentv and isinstance(provider, str) and ":" not in provider and provider != "echo":
        name = provider
        if name not in carried.known_targets:
            holder = "its file of targets has not" if carried.known_targets else "no targets.yaml or providers.yaml has"
            carried.leave_out(at, f"the target {name}, which {holder}")
            return None
        provider, at = carried.known_targets[name]
    fields = provider if isinstance(provider, dict) else {"id": provider}
    if len(fields) == 1 and isinstance(provider, dict) and "id" not in fields:
        (only,) = fields.items()
        fields = {"id": only[0], **mapping(only[1])}
    identifier, config = str(fields.get("provider", fields.get("id"))), mapping(fields.get("config"))
    known = {"id", "label", "name", "provider", "runtime"} if carried.is_agentv else {"id", "label"}
    known |= {"config"} if config == fields.get("config") else set()
    others = {key: fields[key] for key in fields.keys() - known}
    judge = others.pop("grader_target", None) or others.pop("judge_target", None)
    settings, where = ({**others, **config}, at) if carried.is_agentv else (config, at.under("config"))
    try:
        target = _target(carried, identifier, settings, where)
    except ValueError as reason:
        carried.leave_out(at, f"the provider {identifier}: {reason}")
        return None
    carried.leave_out_unknown({} if carried.is_agentv else others, at, ())
    if judge is not None and (is_judge or judge == name):
        carried.leave_out(at, f"its judge {judge}: it judges itself, or is a judge's own")
    elif judge is not None and (judging := add_provider(carried, judge, at, is_judge=True)) is not None:
        target["judge_target"] = judging
    return carried.add_target(name or fields.get("label") or target.get("model", identifier), target)


def _target(carried: CarriedEvaluation, identifier: str, settings: JsonDict, at: At) -> JsonDict:
    """The target of a provider's id, such as ``openai:chat:gpt-4o``. Raises `ValueError` if it has no counterpart."""
    if identifier in ("echo", "mock", "cli"):
        return _local(carried, settings, at)
    family, *rest = identifier.split(":")
    api = _KINDS[rest.pop(0)] if rest and rest[0] in _KINDS else ""
    provider = _VENDORS_THERE.get(family, family)
    is_known = provider in VENDORS or provider == "anthropic"
    if not is_known or not ("".join(rest) or carried.is_agentv) or (rest and rest[0] in _OTHER_KINDS):
        raise ValueError("no counterpart; add a target to quintain.yaml")
    variable = KEY_VARIABLES.get(provider)
    named = _VARIABLE.fullmatch(str(settings.get("apiKey")))
    # AgentV writes the key itself, as a setting.
    variable = named[1] if named else settings.get("apiKeyEnvar", None if carried.is_agentv and not rest else variable)
    by_id = {
        "provider": provider,
        "model": ":".join(rest),
        "api": api,
        "api_key": variable and f"${{{{ {variable} }}}}",
    }
    target: JsonDict = {key: value for key, value in by_id.items() if value}
    names = _SETTINGS_OF_AGENTV if carried.is_agentv else _SETTINGS
    for key in sorted(names.keys() & settings.keys()):
        section, _, setting = names[key].rpartition(".")
        (target.setdefault(section, {}) if section else target)[setting] = _reference(key, settings[key])
    carried.leave_out_unknown(settings, at, (*names, "apiKeyEnvar", *(["apiKey"] if named else [])))
    return target


def _reference(key: str, value: Any) -> Any:
    """A setting, with our references to variables. Raises `ValueError` for another template."""
    if not isinstance(value, str) or "{{" not in value or value.lstrip().startswith("${{"):
        return value
    if (variable := _VARIABLE.fullmatch(value)) is None:
        raise ValueError(f"its {key} is a template, and not one variable of the environment")
    return f"${{{{ {variable[1]} }}}}"


def _local(carried: CarriedEvaluation, settings: JsonDict, at: At) -> JsonDict:
    """A target that needs no key: an echo, or AgentV's mock and cli. Raises `ValueError` for another command."""
    carried.leave_out_unknown(settings, at, ("command", "response", "cwd") if carried.is_agentv else ())
    command: Any = settings.get("command")
    if not carried.is_agentv or command is None:
        return {"provider": "mock", **({"response": settings["response"]} if "response" in settings else {})}
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if any("{" in word and word not in _PLACEHOLDERS for word in words):
        raise ValueError("a command with {PROMPT} or {FILES}: use {PROMPT_FILE}")
    folder = carried.relative(at.file.parent.resolve() / str(settings.get("cwd", ".")))
    return {"provider": "command", "command": [_PLACEHOLDERS.get(word, word) for word in words], "cwd": folder}
