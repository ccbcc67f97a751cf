"""Reads an evaluation of OpenAI's evals as one of ours: its samples, or an entry of its registry that names them.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: openai/evals 3.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from quintain.errors import ConfigError
from quintain_cli.init.carried import At, CarriedCase, CarriedEvaluation, JsonDict, mapping, read_items

#: The class of an evaluation → the grader that says the same.
_GRADERS: Mapping[str, JsonDict] = {
    "evals.elsuite.basic.match:Match": {"builtin": "starts-with"},
    "evals.elsuite.basic.includes:Includes": {"builtin": "contains"},
}
_MATCH = "evals.elsuite.basic.match:Match"


def read_samples(carried: CarriedEvaluation) -> None:
    """Read a file of samples. Raises `ConfigError` if it cannot be read."""
    at = At(carried.source, lambda _: 1)
    carried.leave_out(at, "how answers are graded, which samples do not say: they are as of the class Match")
    _add_samples(carried, carried.source, _GRADERS[_MATCH])


def registry_entries(body: Mapping[str, object]) -> dict[str, JsonDict]:
    """Return the entries of a registry that name a class and samples; none of what is no registry."""
    entries = {str(name): mapping(entry) for name, entry in body.items()}
    return {
        name: entry
        for name, entry in entries.items()
        if "class" in entry and "samples_jsonl" in mapping(entry.get("args"))
    }


def read_registry(carried: CarriedEvaluation, entries: Mapping[str, JsonDict], at: At) -> None:
    """Read the first of a registry's entries. Raises `ConfigError` for a class or a file that cannot be read."""
    (name, entry), *others = entries.items()
    for other, _ in others:
        carried.leave_out(at.under(other), f"a second evaluation; {name} is carried")
    arguments = dict(mapping(entry["args"]))
    if (grader := _GRADERS.get(str(entry["class"]))) is None:
        raise ConfigError(f"{carried.source}: {name}: the class {entry['class']} has no counterpart")
    ignore_case = arguments.pop("ignore_case", None)
    samples = _samples_of(carried, str(arguments.pop("samples_jsonl")))
    carried.leave_out_unknown(arguments, at.under(name, "args"), ())
    _add_samples(carried, samples, {**grader, **({} if ignore_case is None else {"ignore_case": bool(ignore_case)})})


def _samples_of(carried: CarriedEvaluation, name: str) -> Path:
    """The file of samples: beside the entry, or in the registry's folder of data, which is said then. Raises
    `ConfigError`."""
    places = [carried.folder / name, carried.folder.parent / "data" / name]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        nowhere = f"is in neither {places[0].parent} nor {places[1].parent}"
        raise ConfigError(f"{carried.source}: samples_jsonl: {name} {nowhere}")
    if not found.resolve().is_relative_to(carried.folder.resolve()):
        carried.outside.append(os.path.relpath(found, carried.folder))
    return found


def _add_samples(carried: CarriedEvaluation, samples: Path, grader: Mapping[str, object]) -> None:
    for sample, at in read_items(samples):
        fields = mapping(sample)
        asked, ideal = fields.get("input"), fields.get("ideal")
        if asked in (None, "", []) or ideal in (None, "", []):
            carried.leave_out(at, "a sample without input or ideal")
            continue
        case = CarriedCase(at=at, id=None, graders=[dict(grader)])
        case.fields = {"question" if isinstance(asked, str) else "messages": asked, "expected": ideal}
        case.metadata = {key: value for key, value in fields.items() if key not in {"input", "ideal"}}
        carried.cases.append(case)
