"""Reads an evaluation of OpenAI's evals as one of ours: its samples, or an entry of its registry that names them.

What has no counterpart is noted with its line, never dropped in silence. Source of the format: openai/evals 3.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quintain.errors import ConfigError
from quintain_cli.init.carried import At, CarriedCase, CarriedEvaluation, JsonDict, mapping, read_document, read_items

#: The class of an evaluation → the grader that says the same.
_GRADERS: Mapping[str, JsonDict] = {
    "evals.elsuite.basic.match:Match": {"builtin": "starts-with"},
    "evals.elsuite.basic.includes:Includes": {"builtin": "contains"},
}
_MATCH = "evals.elsuite.basic.match:Match"


def is_openai_evals(source: Path) -> bool:
    """Whether a file has samples of OpenAI's evals, or an entry of their registry."""
    if source.suffix == ".jsonl":
        items = read_items(source)
        return bool(items) and {"input", "ideal"} <= mapping(items[0][0]).keys()
    return source.suffix in {".yaml", ".yml"} and bool(_entries(mapping(read_document(source)[0])))


def read_openai_evals(carried: CarriedEvaluation) -> None:
    """Read samples, with the class of the registry's entry. Raises `ConfigError` for a file that cannot be read."""
    if carried.source.suffix == ".jsonl":
        at = At(carried.source, lambda _: 1)
        carried.leave_out(at, "how answers are graded, which samples do not say: they are as of the class Match")
        _add_samples(carried, carried.source, dict(_GRADERS[_MATCH]))
        return
    body, at = read_document(carried.source)
    (name, entry), *others = _entries(body).items()
    for other, _ in others:
        carried.leave_out(at.under(other), f"a second evaluation; {name} is carried")
    place, arguments = at.under(name), dict(mapping(entry.get("args")))
    grader = _GRADERS.get(str(entry["class"]))
    if grader is None:
        raise ConfigError(f"{carried.source}: {name}: the class {entry['class']} has no counterpart")
    ignore_case = arguments.pop("ignore_case", None)
    samples = _samples_of(carried.source, str(arguments.pop("samples_jsonl")))
    carried.leave_out_unknown(arguments, place.under("args"), ())
    _add_samples(carried, samples, {**grader, **({} if ignore_case is None else {"ignore_case": bool(ignore_case)})})


def _entries(body: Mapping[str, object]) -> dict[str, JsonDict]:
    """The entries of a registry that name a class and samples."""
    entries = {str(name): mapping(entry) for name, entry in body.items()}
    return {
        name: entry
        for name, entry in entries.items()
        if "class" in entry and "samples_jsonl" in mapping(entry.get("args"))
    }


def _samples_of(registry: Path, name: str) -> Path:
    """The file of samples: beside the entry, or in the registry's folder of data. Raises `ConfigError`."""
    places = [registry.parent / name, registry.parent.parent / "data" / name]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise ConfigError(f"{registry}: samples_jsonl: {name} is in neither {places[0].parent} nor {places[1].parent}")
    return found


def _add_samples(carried: CarriedEvaluation, samples: Path, grader: JsonDict) -> None:
    for sample, at in read_items(samples):
        fields = mapping(sample)
        asked, ideal = fields.get("input"), fields.get("ideal")
        if asked is None or ideal is None:
            carried.leave_out(at, "a sample without input or ideal")
            continue
        case = CarriedCase(at=at, id=None, graders=[dict(grader)])
        case.fields = {"question" if isinstance(asked, str) else "messages": asked, "expected": ideal}
        case.metadata = {key: value for key, value in fields.items() if key not in {"input", "ideal"}}
        carried.cases.append(case)
