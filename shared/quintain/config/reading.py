"""From a file's tree to its targets, collecting every mistake as a sentence with its place. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from quintain.config.targets import KINDS, PARTS, UNRESOLVED, TargetConfig
from quintain.config.tree import place
from quintain.contracts.names import TARGET_NAME_PATTERN

_TOP_LEVEL = ("targets",)

_NO_TARGETS = "targets: no target is configured; add one, such as targets: {demo: {provider: mock}}"

#: The reference that a key stands for where none is given and no ``base_url`` leads elsewhere.
_KEY_OF = {"openai": "${{ OPENAI_API_KEY }}", "anthropic": "${{ ANTHROPIC_API_KEY }}"}

Written = dict[str, dict[str, object]]


def written_targets(tree: object, mistakes: list[str]) -> Written:
    """What the file says of each target, by name; AgentV's list of ``{name: …}`` becomes a map."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        mistakes.append(f"the file holds {_kind(tree)}; it must be a map with targets:")
        return {}
    mistakes.extend(_unknown_key("", str(key), _TOP_LEVEL) for key in tree if key not in _TOP_LEVEL)
    targets = tree.get("targets")
    pairs: Iterable[tuple[object, object]]
    if isinstance(targets, list):
        pairs = _named(targets, mistakes)
    elif targets is None or isinstance(targets, dict):
        pairs = (targets or {}).items()
    else:
        mistakes.append(f"targets: {_kind(targets)}; it must be a map, or a list of {{name: …}}")
        return {}
    if not targets:
        mistakes.append(_NO_TARGETS)
    return _well_formed(pairs, mistakes)


def read_targets(written: Written, mistakes: list[str], *, resolved: Written | None = None) -> dict[str, TargetConfig]:
    """The targets, as far as they can be read. ``resolved`` holds the same tree with the environment's values."""
    targets: dict[str, TargetConfig] = {}
    for name, says in written.items():
        values = None if resolved is None else resolved[name]
        target = _read_target(name, says, mistakes=mistakes, values=values)
        if target is not None:
            targets[name] = target.as_written(says)
    for name, target in targets.items():
        judge = target.judge_target
        if judge is not None and judge not in written:
            where = place(("targets", name, "judge_target"))
            shown = written[name]["judge_target"]
            mistakes.append(f"{where}: no target is named {shown!r}{_nearest(judge, written)}")
    return targets


def _named(targets: list[object], mistakes: list[str]) -> list[tuple[object, object]]:
    pairs: list[tuple[object, object]] = []
    for index, target in enumerate(targets):
        where = place(("targets", index))
        if not isinstance(target, dict):
            mistakes.append(f"{where}: {_kind(target)}; it must be a map")
        elif "name" not in target:
            mistakes.append(f"{where}: missing key 'name'")
        elif any(target["name"] == name for name, _ in pairs):
            mistakes.append(f"{where}: the name {target['name']!r} is given twice")
        else:
            pairs.append((target["name"], {key: value for key, value in target.items() if key != "name"}))
    return pairs


def _well_formed(pairs: Iterable[tuple[object, object]], mistakes: list[str]) -> Written:
    written: Written = {}
    for name, target in pairs:
        where = place(("targets", str(name)))
        if not isinstance(name, str):
            mistakes.append(f"{where}: a target's name is text; put it in quotes")
        elif not re.match(TARGET_NAME_PATTERN, name) or name.endswith("\n"):
            mistakes.append(f"{where}: not a target's name; letters, digits, '.', '_' and '-', at most 63")
        elif not isinstance(target, dict):
            mistakes.append(f"{where}: {_kind(target)}; it must be a map with provider:")
        else:
            written[name] = _with_default_key({str(key): value for key, value in target.items()})
    return written


def _with_default_key(target: dict[str, object]) -> dict[str, object]:
    # With a base_url there is no default: the vendor's key is not for another host's eyes.
    key = _KEY_OF.get(str(target.get("provider")))
    if key is None or target.get("api_key") is not None or target.get("base_url") is not None:
        return target
    return {**target, "api_key": key}


def _read_target(
    name: str, says: dict[str, object], *, mistakes: list[str], values: dict[str, object] | None
) -> TargetConfig | None:
    where = place(("targets", name))
    provider = says.get("provider")
    if provider is None:
        mistakes.append(f"{where}: missing key 'provider'; known: {', '.join(KINDS)}")
    elif not isinstance(provider, str) or provider not in KINDS:
        mend = f"{_nearest(str(provider), KINDS) or '.'} Known: {', '.join(KINDS)}"
        mistakes.append(f"{where}.provider: unknown provider {provider!r}{mend}")
    else:
        try:
            return KINDS[provider].model_validate(
                says if values is None else values, context={UNRESOLVED: values is None}
            )
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            mistakes.extend(_sentence(name, provider, detail) for detail in details)
    return None


def _sentence(name: str, provider: str, detail: ErrorDetails) -> str:
    parts = ("targets", name, *detail["loc"])
    if detail["type"] == "extra_forbidden":
        model = KINDS[provider] if len(detail["loc"]) == 1 else PARTS[str(detail["loc"][-2])]
        return _unknown_key(place(parts[:-1]), str(parts[-1]), model.model_fields)
    if detail["type"] == "missing":
        return f"{place(parts[:-1])}: missing key '{parts[-1]}'"
    what = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "string_type":
        what = "not a text; put it in quotes"
    return f"{place(parts)}: {what}"


def _unknown_key(where: str, key: str, known: Iterable[str]) -> str:
    known = tuple(known)
    mend = _nearest(key, known) or f"; known: {', '.join(known)}"
    return f"{where}: unknown key {key!r}{mend}" if where else f"unknown key {key!r}{mend}"


def _nearest(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind(value: object) -> str:
    names = {dict: "a map", list: "a list", str: "a text", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else "a value")
