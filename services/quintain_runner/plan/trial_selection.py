"""Selects the trials that one command executes, by its options; rows of other trials stay as they are."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

from pydantic import JsonValue

from quintain.config.file_errors import did_you_mean, suggestion
from quintain.errors import ConfigError
from quintain_runner.plan.dataset import CaseSource, DatasetStats, read_cases
from quintain_runner.plan.selection import ALL_CASES, CaseSelection, HashSampler
from quintain_runner.results.row import RowStatus
from quintain_runner.results.store import RESULTS_FILE_NAME, current_rows
from quintain_runner.spec.evaluation import Scalar
from quintain_runner.spec.prompts import case_field
from quintain_runner.spec.templates import case_values

#: Of so many cases an error looks for the nearest id, field or value.
_MAX_LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """The options of a command that narrow its trials; a case is executed if all of them select it.

    ``where`` has ``FIELD=VALUE`` texts; of one field several values are allowed. ``failing`` selects the cases of
    failed rows, errors and rows in doubt, of the run in the folder ``of``, by default of this run's. Of the cases that
    are left, ``sample`` are drawn with ``seed``, and the first ``limit`` of these are executed. None selects all.
    ``prompts`` and ``graders`` are names; verdicts of graders that are left out stay in their rows.
    """

    ids: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    failing: bool = False
    of: Path | None = None
    sample: int | None = None
    seed: int | None = None
    limit: int | None = None
    prompts: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()

    @property
    def narrows_cases(self) -> bool:
        """Whether any of them is about cases."""
        return bool(replace(self, prompts=(), graders=()).to_wire())

    def to_wire(self) -> dict[str, object]:
        """The options that are given, as ``run.json`` has them."""
        given = asdict(self) | {"of": str(self.of or "")}
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return {name: value for name, value in given.items() if value not in (None, [], "") and value is not False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSelection:
    """The trials that one command may execute.

    ``cases`` selects the cases, of which there are ``case_count`` (None: all), and ``left_out`` counts those that each
    option leaves out. ``targets`` are names of targets; without any all are selected.
    """

    options: SelectionOptions = field(default_factory=SelectionOptions)
    cases: CaseSelection = ALL_CASES
    case_count: int | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    targets: Collection[str] = ()

    def has_column(self, target: str, prompt: str | None) -> bool:
        """Whether trials of this target under this prompt are selected."""
        prompts = self.options.prompts
        return (not self.targets or target in self.targets) and (not prompts or prompt in prompts)

    def to_wire(self) -> dict[str, object] | None:
        """What is selected, as ``run.json`` has it; None for everything."""
        targets = {"targets": sorted(self.targets)} if self.targets else {}
        left_out = {"leftOut": dict(self.left_out)} if self.left_out else {}
        return {**self.options.to_wire(), **targets, **left_out} or None


def select_trials(
    options: SelectionOptions, dataset: DatasetStats, targets: Collection[str], results_folder: Path
) -> TrialSelection:
    """Draw what the options select of a dataset, for these targets, or for all if there are none.

    ``results_folder`` is the one of this run. Raises `ConfigError` for an id that no case has, for an option that needs
    another one, and if no case is selected.
    """
    selected = TrialSelection(options=options, targets=frozenset(targets))
    if not options.narrows_cases:
        return selected
    if options.of is not None and not options.failing:
        raise ConfigError("--of RUN: it says whose failing cases; give --failing, too")
    if options.seed is not None and options.sample is None:
        raise ConfigError("--seed: it is of a sample; give --sample, too")
    where, ids = _where_of(options.where), None
    if options.failing:
        ids = _failing_cases(options.of or results_folder, () if options.of else targets)
    if options.ids:
        ids = frozenset(options.ids) if ids is None else ids & frozenset(options.ids)
    sampler = HashSampler(
        CaseSelection(where=where, seed=options.seed or 0, limit=options.limit, ids=ids), options.sample
    )
    total, unknown = 0, set(options.ids)
    for case in read_cases(dataset.source):
        total += 1
        unknown.discard(case.id)
        sampler.offer(case)
    if unknown or not sampler.matching_count:
        raise ConfigError(f"{dataset.source.path}: {_nothing_selected(dataset.source, sorted(unknown), where)}")
    sampled = min(sampler.matching_count, options.sample or sampler.matching_count)
    named = {"--case": options.ids, "--where": options.where, "--failing": options.failing}
    left_out = {
        " ".join(name for name, value in named.items() if value): total - sampler.matching_count,
        "--sample": sampler.matching_count - sampled,
        "--limit": sampled - sampler.case_count,
    }
    return replace(
        selected,
        cases=sampler.final_selection(),
        case_count=sampler.case_count,
        left_out={name: count for name, count in left_out.items() if count},
    )


def _where_of(texts: Iterable[str]) -> dict[str, tuple[Scalar, ...]]:
    where: dict[str, tuple[Scalar, ...]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"--where {text}: write FIELD=VALUE, such as topic=law")
        where[name] = (*where.get(name, ()), value)
        with suppress(ValueError, RecursionError):
            # A field may hold the number 3 or the text "3": both are meant.
            if isinstance(read := json.loads(value), int | float | None):
                where[name] += (read,)
    return where


def _failing_cases(folder: Path, targets: Collection[str]) -> frozenset[str]:
    """The cases with a row of these targets, or of any if there are none, that failed, is an error or is in doubt."""
    if not (folder / RESULTS_FILE_NAME).is_file():
        raise ConfigError(f"--failing: {folder} has no results of a run; name the folder of one with --of")
    rows = (row for row in current_rows(folder) if not targets or row.target in targets)
    failing = frozenset(row.case_id for row in rows if not (row.passed or row.status is RowStatus.UNCOMPARED))
    if not failing:
        raise ConfigError(f"--failing: no row of {folder} failed, is an error or is in doubt")
    return failing


def _nothing_selected(source: CaseSource, unknown: list[str], where: Mapping[str, tuple[Scalar, ...]]) -> str:
    """What is wrong with options that name an unknown case, or that select none; with what is nearest."""
    with closing(read_cases(source)) as read:
        cases = list(islice(read, _MAX_LOOKED_AT))
    if unknown:
        named = (f"{name!r}{did_you_mean(name, [case.id for case in cases])}" for name in unknown)
        return f"--case {', '.join(named)}: none of the selected cases of the dataset has this id"
    for name, (value, *_) in where.items():
        values = dict.fromkeys(text for case in cases for text in _texts_of(case_field(case, name)))
        if not values.keys() - {"null"}:
            fields = dict.fromkeys(key for case in cases for key in case_values(case))
            return f"--where {name}={value}: none of the cases has the field {name!r}{suggestion(name, fields)}"
        if value not in values:
            return f"--where {name}={value}: none of the cases has this value{did_you_mean(str(value), values)}"
    return "no case is selected by all these options together; leave one out"


def _texts_of(value: JsonValue) -> Iterator[str]:
    """A value, or the items of a list, as ``--where`` names them."""
    for item in value if isinstance(value, list) else [value]:
        yield item if isinstance(item, str) else json.dumps(item)
