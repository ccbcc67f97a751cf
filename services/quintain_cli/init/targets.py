"""Providers of promptfoo and targets of AgentV as targets of ours."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from quintain_cli.init.carried import FILE_PREFIX, At, CarriedEvaluation, Found, JsonDict, mapping, read_document

#: The name of a setting there → ours.
_SETTINGS = {
    "model": "model", "temperature": "temperature", "max_tokens": "max_tokens", "top_p": "settings.top_p",
    "frequency_penalty": "settings.frequency_penalty", "presence_penalty": "settings.presence_penalty",
    "seed": "settings.seed", "stop": "settings.stop", "reasoning_effort": "settings.reasoning_effort",
    "apiBaseUrl": "base_url",
}  # fmt: skip
_SETTINGS_OF_AGENTV = {
    "model": "model", "temperature": "temperature", "max_output_tokens": "max_tokens", "api_key": "api_key",
    "base_url": "base_url", "endpoint": "base_url", "workers": "max_concurrency",
}  # fmt: skip

#: The beginning of a provider's id → the provider, the variable of its key, and its base URL.
_PROVIDERS: Mapping[str, tuple[str, str | None, str | None]] = {
    "openai": ("openai", "OPENAI_API_KEY", None),
    "anthropic": ("anthropic", "ANTHROPIC_API_KEY", None),
    "openrouter": ("openai", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "ollama": ("openai", None, "http://127.0.0.1:11434/v1"),
    "mistral": ("openai", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    "groq": ("openai", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "gemini": ("openai", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta/openai/"),
}
_OF_AGENTV = ("openai", "anthropic", "openrouter", "gemini")

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


def _settings(values: JsonDict, names: Mapping[str, str]) -> JsonDict:
    """The settings with a counterpart, with our references to variables. Raises `ValueError` for other templates."""
    found: JsonDict = {}
    for key in names.keys() & values.keys():
        value, (section, _, name) = values[key], names[key].rpartition(".")
        if isinstance(value, str) and "{{" in value and not value.lstrip().startswith("${{"):
            variable = _VARIABLE.fullmatch(value)
            if variable is None:
                raise ValueError(f"its {key} is a template, and not one variable of the environment")
            value = f"${{{{ {variable[1]} }}}}"
        (found.setdefault(section, {}) if section else found)[name] = value
    return dict(sorted(found.items()))


def add_providers(carried: CarriedEvaluation, listed: object, at: At) -> None:
    """Add the targets of promptfoo's providers: of one, of a list, or of files that are named."""
    for one, place in at.items(listed):
        is_file = isinstance(one, str) and one.startswith(FILE_PREFIX)
        for provider, where in carried.items(one, place) if is_file else [(one, place)]:
            name = add_provider(carried, provider, where)
            carried.evaluated += [] if name is None or name in carried.evaluated else [name]


def add_provider(carried: CarriedEvaluation, provider: object, at: At) -> str | None:
    """Add the target of a provider: its id, or a mapping with id, label and config. None, with a note, of others."""
    if isinstance(provider, dict) and "id" not in provider and len(provider) == 1:
        (only,) = provider.items()
        provider = {"id": only[0], **mapping(only[1])}
    fields = provider if isinstance(provider, dict) else {"id": provider}
    identifier, config = str(fields.get("id")), fields.get("config", {})
    known = ("id", "label", "config") if isinstance(config, dict) else ("id", "label")
    try:
        target = {"provider": "mock"} if identifier == "echo" else _model(identifier, mapping(config))
    except ValueError as reason:
        carried.leave_out(at, f"the provider {identifier}: {reason}")
        return None
    carried.leave_out_unknown(fields, at, known)
    has_key = _VARIABLE.fullmatch(str(mapping(config).get("apiKey")))
    settings = () if identifier == "echo" else (*_SETTINGS, "apiKeyEnvar", *(("apiKey",) if has_key else ()))
    carried.leave_out_unknown(mapping(config), at.under("config"), settings)
    return carried.add_target(fields.get("label") or target.get("model", "echo"), target)


def _model(identifier: str, config: JsonDict) -> JsonDict:
    """The target of a provider's id, such as ``openai:chat:gpt-4o``. Raises `ValueError` if it has no counterpart."""
    family, *rest = identifier.split(":")
    api = _KINDS[rest.pop(0)] if rest and rest[0] in _KINDS else ""
    if family not in _PROVIDERS or not "".join(rest) or rest[0] in _OTHER_KINDS:
        raise ValueError("no counterpart; add a target to quintain.yaml")
    provider, variable, base_url = _PROVIDERS[family]
    named = _VARIABLE.fullmatch(str(config.get("apiKey")))
    variable = named[1] if named else config.get("apiKeyEnvar", variable)
    return {
        "provider": provider,
        "model": ":".join(rest),
        **({} if base_url is None else {"base_url": base_url}),
        **({"api": api} if api else {}),
        **({} if variable is None else {"api_key": f"${{{{ {variable} }}}}"}),
        **_settings(config, _SETTINGS),
    }


def add_targets_of_agentv(carried: CarriedEvaluation, wanted: object, at: At) -> None:
    """Add AgentV's targets that are wanted, with their judges, from the nearest file of targets.

    A target that nobody asks would need its variables, too, and stop the run without them.
    """
    folders = (carried.folder, *carried.folder.resolve().parents)
    path = next((one for folder in folders for name in _TARGET_FILES if (one := folder / name).is_file()), None)
    carried.known_targets = {} if path is None else _named_targets(*read_document(path))
    for one, place in at.items(wanted):
        name = judge_target(carried, one, place)
        carried.evaluated += [] if name is None or name in carried.evaluated else [name]


def judge_target(carried: CarriedEvaluation, provider: object, at: At) -> str | None:
    """The target of a provider that is written out, or of AgentV's of this name; None, with a note, of others."""
    fields = mapping(provider)
    identifier = str(fields.get("id", provider))
    if not carried.is_agentv or ":" in identifier or identifier == "echo":
        return add_provider(carried, provider, at)
    found = (provider, at) if fields else carried.known_targets.get(identifier)
    if found is None:
        where = "its file of targets has not" if carried.known_targets else "no targets.yaml or providers.yaml has"
        carried.leave_out(at, f"the target {identifier}, which {where}")
        return None
    target = _target_of_agentv(carried, found, carried.known_targets)
    return None if target is None else carried.add_target(fields.get("label", identifier), target)


def _named_targets(value: object, at: At) -> dict[str, Found]:
    """The targets of a file, or of the file that it names, by their names."""
    if isinstance(value, dict):
        key = "targets" if "targets" in value else "providers"
        value, at = value.get(key), at.under(key)
    if isinstance(value, str):
        return _named_targets(*read_document(at.file.parent / value.removeprefix(FILE_PREFIX)))
    return {str(mapping(one).get("name", mapping(one).get("label"))): (one, place) for one, place in at.items(value)}


def _target_of_agentv(carried: CarriedEvaluation, found: Found, known: Mapping[str, Found]) -> JsonDict | None:
    given, at = found
    fields = {**mapping(given), **mapping(mapping(given).get("config"))}
    provider = str(fields.get("provider", fields.get("id")))
    settings = {key: fields[key] for key in fields.keys() - {"name", "label", "provider", "id", "config", "runtime"}}
    judge = settings.pop("grader_target", None) or settings.pop("judge_target", None)
    try:
        target = (
            _local(carried, settings, at) if provider in ("mock", "cli") else _hosted(carried, provider, settings, at)
        )
    except ValueError as reason:
        carried.leave_out(at, f"the provider {provider}: {reason}")
        return None
    if judge is not None:
        own = known.get(str(judge), (given, at))
        judging = None if own[0] is given else _target_of_agentv(carried, own, {})
        if judging is None:
            carried.leave_out(at, f"its judge {judge}, which could not be carried")
        else:
            target["judge_target"] = carried.add_target(judge, judging)
    return target


def _hosted(carried: CarriedEvaluation, provider: str, settings: JsonDict, at: At) -> JsonDict:
    if provider not in _OF_AGENTV:
        raise ValueError("no counterpart; add a target to quintain.yaml")
    ours, _, base_url = _PROVIDERS[provider]
    api = {"api": "responses"} if settings.get("api_format") == "responses" else {}
    carried.leave_out_unknown(settings, at, (*_SETTINGS_OF_AGENTV, "api_format"))
    url = {} if base_url is None or settings.keys() & {"base_url", "endpoint"} else {"base_url": base_url}
    return {"provider": ours, **url, **api, **_settings(settings, _SETTINGS_OF_AGENTV)}


def _local(carried: CarriedEvaluation, settings: JsonDict, at: At) -> JsonDict:
    """A target of the providers ``mock`` and ``cli``, which need no key. Raises `ValueError` for another command."""
    carried.leave_out_unknown(settings, at, ("command", "response", "cwd"))
    command: Any = settings.get("command")
    if command is None:
        return {"provider": "mock", **({"response": settings["response"]} if "response" in settings else {})}
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if any("{" in word and word not in _PLACEHOLDERS for word in words):
        raise ValueError("a command with {PROMPT} or {FILES}: use {PROMPT_FILE}")
    folder = carried.relative(at.file.parent.resolve() / str(settings.get("cwd", ".")))
    return {"provider": "command", "command": [_PLACEHOLDERS.get(word, word) for word in words], "cwd": folder}
