"""Finds and loads the configuration file: validates its targets and quotas, and substitutes variables in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import JsonValue, ValidationError
from pydantic.json_schema import models_json_schema

from quintain.config.described_schema import DescribedSchema
from quintain.config.file_errors import ModelsByPlace, did_you_mean, suggestion, validation_messages
from quintain.config.overrides import OverriddenFile, Override
from quintain.config.secrets import (
    find_variables,
    format_path,
    literal_secret_errors,
    missing_variable_errors,
    substitute,
    syntax_errors,
)
from quintain.config.target_fields import NESTED_MODELS, UNRESOLVED_CONTEXT_KEY
from quintain.config.targets import TARGET_MODELS, QuotaConcurrency, QuotaConfig, TargetConfig
from quintain.config.vendors import KEY_VARIABLES
from quintain.config.yaml_file import read_yaml
from quintain.contracts.values import TARGET_NAME_PATTERN, is_target_name
from quintain.errors import ConfigError
from quintain.settings import Settings, with_secrets

#: Possible names of the configuration file, in order of precedence.
FILE_NAMES = ("quintain.yaml", "agentv.config.yaml")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A validated configuration: ``targets`` in the file's order, ``quotas``, and ``variable_names``, all variables.

    ``error_of`` makes one error of messages, and names the file or the option that set the value. ``notes`` says of
    which values YAML 1.1 would make something else.

    After loading, API keys still hold their references, and other fields with a reference show their default; `resolve`
    fills in the values.
    """

    path: Path
    targets: dict[str, TargetConfig]
    variable_names: tuple[str, ...]
    raw_targets: RawTargets = field(repr=False)
    error_of: Callable[[Iterable[str]], ConfigError] = field(repr=False)
    quotas: dict[str, QuotaConfig] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """The folder of the file, to which relative paths refer and from which modules are imported."""
        return self.path.parent

    def resolve(self, env: Mapping[str, str]) -> Config:
        """Return this configuration with environment variables substituted; ``NAME_FILE`` is read for ``NAME``.

        Raises `ConfigError` with one line for every missing variable, or for every invalid value.
        """
        tree, env = {"targets": self.raw_targets}, with_secrets(env, self.variable_names)
        errors = list(missing_variable_errors(tree, env))
        if errors:
            raise self.error_of(errors)
        values = cast("RawTargets", substitute(self.raw_targets, env))
        targets = validate_targets(self.raw_targets, errors, self.quotas, resolved=values)
        if errors:
            raise self.error_of(errors)
        return replace(self, targets=targets)


def load_config(path: Path, overrides: Sequence[Override] = ()) -> Config:
    """Load and validate a configuration file, with these values in place of its own, without reading the environment.

    Raises `ConfigError` with one line for every mistake in the file or of an override.
    """
    errors: list[str] = []
    document, overridden = read_yaml(path, errors), OverriddenFile(path, overrides)
    tree = overridden.tree(document.value)
    errors += [*syntax_errors(tree), *literal_secret_errors(tree)]
    raw_targets, targets, quotas = _read_tree(tree, errors)
    if errors:
        raise overridden.error(document.value, errors)
    return Config(
        path=path.absolute(),
        targets=targets,
        variable_names=find_variables({"targets": raw_targets}),
        raw_targets=raw_targets,
        quotas=quotas,
        error_of=partial(overridden.error, document.value),
        notes=[f"{path}: {note}" for note in document.notes(lambda tree: _meaning(overridden.tree(tree)))],
    )


def _read_tree(tree: object, errors: list[str]) -> tuple[RawTargets, dict[str, TargetConfig], dict[str, QuotaConfig]]:
    raw_targets, quotas = parse_targets(tree, errors), parse_quotas(tree, errors)
    return raw_targets, validate_targets(raw_targets, errors, quotas), quotas


def _meaning(tree: object) -> object:
    """What a file's tree means. Raises `ConfigError` if it is no configuration."""
    errors: list[str] = []
    _, targets, quotas = _read_tree(tree, errors)
    if errors:
        raise ConfigError(errors[0])
    return {name: dict(target) for name, target in targets.items()}, quotas


def find_config(start: Path) -> Path | None:
    """Return the configuration file of this folder or of the nearest parent folder that has one."""
    start_folder = start.absolute()
    for folder in (start_folder, *start_folder.parents):
        for name in FILE_NAMES:
            if (folder / name).is_file():
                return folder / name
    return None


#: The keys of a configuration file.
TOP_LEVEL = ("targets", "quotas")

_NO_TARGETS = "targets: no target is configured; add one, such as targets: {demo: {provider: mock}}"

RawTargets = dict[str, dict[str, object]]

_QUOTA_MODELS: ModelsByPlace = {(): QuotaConfig, ("concurrency",): QuotaConcurrency}


def parse_targets(tree: object, errors: list[str]) -> RawTargets:
    """Return the unvalidated targets by name, from a map or AgentV's list of ``{name: …}``; appends to ``errors``."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        errors.append(f"the file holds {_type_name(tree)}; it must be a map with targets:")
        return {}
    errors.extend(f"unknown key {str(key)!r}{suggestion(str(key), TOP_LEVEL)}" for key in tree if key not in TOP_LEVEL)
    targets = tree.get("targets")
    named_targets: Iterable[tuple[object, object]]
    if isinstance(targets, list):
        named_targets = _targets_from_list(targets, errors)
    elif targets is None or isinstance(targets, dict):
        named_targets = (targets or {}).items()
    else:
        errors.append(f"targets: {_type_name(targets)}; it must be a map, or a list of {{name: …}}")
        return {}
    if not targets:
        errors.append(_NO_TARGETS)
    return _check_names(named_targets, errors)


def parse_quotas(tree: object, errors: list[str]) -> dict[str, QuotaConfig]:
    """Return the valid quotas by name, and append every mistake to ``errors``."""
    quotas = tree.get("quotas") if isinstance(tree, dict) else None
    if quotas is not None and not isinstance(quotas, dict):
        errors.append(f"quotas: {_type_name(quotas)}; it must be a map by name")
        return {}
    valid = dict[str, QuotaConfig]()
    for name, quota in (quotas or {}).items():
        location = format_path(("quotas", str(name)))
        if not isinstance(name, str) or not is_target_name(name):
            errors.append(f"{location}: not a quota's name; letters, digits, '.', '_' and '-', at most 63")
        elif not isinstance(quota, dict):
            errors.append(f"{location}: {_type_name(quota)}; it must be a map such as {{requests_per_minute: 5000}}")
        else:
            try:
                valid[name] = QuotaConfig.model_validate(quota)
            except ValidationError as error:
                errors.extend(validation_messages(error, _QUOTA_MODELS, within=("quotas", name)))
    return valid


def validate_targets(
    raw_targets: RawTargets, errors: list[str], quotas: Collection[str] = (), *, resolved: RawTargets | None = None
) -> dict[str, TargetConfig]:
    """Return the valid targets and append every mistake to ``errors``; ``quotas`` are the names of the quotas.

    ``resolved`` is the same tree after the substitution of environment variables.
    """
    targets: dict[str, TargetConfig] = {}
    for name, raw_target in raw_targets.items():
        values = None if resolved is None else resolved[name]
        target = _validate_target(name, raw_target, errors=errors, values=values)
        if target is not None:
            targets[name] = target.with_raw(raw_target)
    for name, target in targets.items():
        judge = target.judge_target
        if judge is not None and judge not in raw_targets:
            location = format_path(("targets", name, "judge_target"))
            shown = raw_targets[name]["judge_target"]
            errors.append(f"{location}: no target is named {shown!r}{did_you_mean(judge, raw_targets)}")
        if target.quota is not None and target.quota not in quotas:
            location = format_path(("targets", name, "quota"))
            shown = raw_targets[name]["quota"]
            errors.append(f"{location}: no quota is named {shown!r}{did_you_mean(target.quota, quotas)}")
    return targets


def _targets_from_list(targets: list[object], errors: list[str]) -> list[tuple[object, object]]:
    named_targets: list[tuple[object, object]] = []
    for index, target in enumerate(targets):
        location = format_path(("targets", index))
        if not isinstance(target, dict):
            errors.append(f"{location}: {_type_name(target)}; it must be a map")
        elif "name" not in target:
            errors.append(f"{location}: missing key 'name'")
        elif any(target["name"] == name for name, _ in named_targets):
            errors.append(f"{location}: the name {target['name']!r} is given twice")
        else:
            named_targets.append((target["name"], {key: value for key, value in target.items() if key != "name"}))
    return named_targets


def _check_names(named_targets: Iterable[tuple[object, object]], errors: list[str]) -> RawTargets:
    raw_targets: RawTargets = {}
    for name, target in named_targets:
        location = format_path(("targets", str(name)))
        if not isinstance(name, str):
            errors.append(f"{location}: a target's name is text; put it in quotes")
        elif not re.match(TARGET_NAME_PATTERN, name) or name.endswith("\n"):
            errors.append(f"{location}: not a target's name; letters, digits, '.', '_' and '-', at most 63")
        elif not isinstance(target, dict):
            errors.append(f"{location}: {_type_name(target)}; it must be a map with provider:")
        else:
            raw_targets[name] = _with_default_api_key({str(key): value for key, value in target.items()})
    return raw_targets


def _with_default_api_key(target: dict[str, object]) -> dict[str, object]:
    # With a base_url there is no default key: the vendor's key must not be sent to another server.
    variable = KEY_VARIABLES.get(str(target.get("provider")))
    if variable is None or target.get("api_key") is not None or target.get("base_url") is not None:
        return target
    return {**target, "api_key": f"${{{{ {variable} }}}}"}


def _validate_target(
    name: str, raw_target: dict[str, object], *, errors: list[str], values: dict[str, object] | None
) -> TargetConfig | None:
    location = format_path(("targets", name))
    provider = raw_target.get("provider")
    if provider is None:
        errors.append(f"{location}: missing key 'provider'; known: {', '.join(TARGET_MODELS)}")
    elif not isinstance(provider, str) or provider not in TARGET_MODELS:
        hint = f"{did_you_mean(str(provider), TARGET_MODELS) or '.'} Known: {', '.join(TARGET_MODELS)}"
        errors.append(f"{location}.provider: unknown provider {provider!r}{hint}")
    else:
        try:
            return TARGET_MODELS[provider].model_validate(
                raw_target if values is None else values, context={UNRESOLVED_CONTEXT_KEY: values is None}
            )
        except ValidationError as error:
            models = {(): TARGET_MODELS[provider], **NESTED_MODELS}
            errors.extend(validation_messages(error, models, within=("targets", name)))
    return None


def _type_name(value: object) -> str:
    names = {dict: "a map", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else "a value")


DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: A reference to an environment variable in place of a number, boolean or enum value.
_REFERENCE: JsonValue = {"type": "string", "pattern": r"\$\{\{\s*[A-Za-z_][A-Za-z0-9_]*\s*(:-.*)?\}\}"}

#: A secret must be a reference.
_SECRET: JsonValue = {"description": "A reference to the environment.", "anyOf": [_REFERENCE, {"type": "null"}]}

Schema = dict[str, JsonValue]


def config_schema() -> Schema:
    """Return the JSON schema of ``quintain.yaml``: targets as a map or AgentV's list of ``{name: …}``, and quotas."""
    models_of_file = [*dict.fromkeys(TARGET_MODELS.values()), QuotaConfig]
    _, schema = models_json_schema(
        [(model, "validation") for model in models_of_file], schema_generator=DescribedSchema
    )
    definitions: dict[str, Schema] = schema["$defs"]
    kinds = {model.__name__ for model in TARGET_MODELS.values()}
    models = {
        # What JSON can hold has no properties of its own.
        name: definition
        if not definition or name.startswith("Quota")
        else _model_schema(definition, is_target=name in kinds)
        for name, definition in definitions.items()
    }
    named = {f"Named{name}": _with_name_property(models[name]) for name in sorted(kinds)}
    return {
        "$schema": DIALECT,
        "title": "A configuration of quintain",
        "type": "object",
        "required": ["targets"],
        "additionalProperties": False,
        "properties": {
            "targets": {
                "description": "The targets: a map by name, or a list of {name: …}.",
                "anyOf": [
                    {
                        "type": "object",
                        "minProperties": 1,
                        "propertyNames": {"pattern": TARGET_NAME_PATTERN},
                        "additionalProperties": {"oneOf": _refs_to(sorted(kinds))},
                    },
                    {"type": "array", "minItems": 1, "items": {"oneOf": _refs_to(sorted(named))}},
                ],
            },
            "quotas": {
                "description": "What provider keys may use: a map by name.",
                "type": "object",
                "propertyNames": {"pattern": TARGET_NAME_PATTERN},
                "additionalProperties": {"$ref": f"#/$defs/{QuotaConfig.__name__}"},
            },
        },
        "$defs": {**models, **named},
    }


def _refs_to(names: list[str]) -> list[JsonValue]:
    return [{"$ref": f"#/$defs/{name}"} for name in names]


def _model_schema(definition: Schema, *, is_target: bool) -> Schema:
    properties = definition.get("properties")
    assert isinstance(properties, dict), "a model has properties"
    return {
        **definition,
        "properties": {
            name: value
            if is_target and name == "provider"
            else _SECRET
            if name == "api_key"
            else _allow_reference(value)
            for name, value in properties.items()
        },
    }


def _allow_reference(value: JsonValue) -> JsonValue:
    """Allow a reference as an alternative to a value that is not a string."""
    if not isinstance(value, dict) or value.get("type") in {"string", "array", "object"} or "$ref" in value:
        return value
    outer: Schema = {key: value[key] for key in ("title", "description", "default") if key in value}
    inner: Schema = {key: item for key, item in value.items() if key not in outer}
    return {**outer, "anyOf": [inner, _REFERENCE]}


def _with_name_property(model: Schema) -> Schema:
    properties, required = model["properties"], model.get("required", [])
    assert isinstance(properties, dict), "a model has properties"
    assert isinstance(required, list), "required is a list"
    name: JsonValue = {"type": "string", "pattern": TARGET_NAME_PATTERN}
    return {**model, "properties": {"name": name, **properties}, "required": ["name", *required]}


def load_configuration(
    settings: Settings,
    config_path: Path | None,
    *,
    start_folder: Path | None = None,
    overrides: Sequence[Override] = (),
) -> Config:
    """Load the configuration: ``config_path``, else QUINTAIN_CONFIG, else the file found from a folder upwards.

    The search begins in ``start_folder``, by default the working folder. Raises `ConfigError` if there is no file or
    if it has errors.
    """
    path = find_configuration(settings, config_path, start_folder=start_folder)
    if path is None:
        raise ConfigError(
            "No configuration: there is no quintain.yaml (or agentv.config.yaml) here or in any folder above; "
            "`quintain init` writes one; or name it with QUINTAIN_CONFIG"
        )
    return load_config(path, overrides)


def find_configuration(
    settings: Settings, config_path: Path | None, *, start_folder: Path | None = None
) -> Path | None:
    """Return the path of the file that `load_configuration` would load, or None if there is none."""
    return config_path or settings.config_path or find_config(start_folder or Path.cwd()) or find_config(Path.cwd())
