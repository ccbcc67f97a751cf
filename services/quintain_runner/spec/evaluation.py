"""The evaluation file: its dataset and everything else in it, with its JSON schema."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from quintain.config.described_schema import DescribedSchema
from quintain.config.file_errors import ModelsByPlace, suggestion, validation_messages
from quintain.config.overrides import OverriddenFile, Override
from quintain.config.yaml_file import read_yaml
from quintain.contracts.message import BodyBytes
from quintain.contracts.money import MaxCostUsd, WarnAt
from quintain.contracts.session import Priority, Weight
from quintain.contracts.values import Count, TargetName
from quintain.errors import ConfigError
from quintain.programs.sandbox import SandboxOption
from quintain.runtime.text_files import read_text
from quintain_runner.results.cache_file import AGE_PATTERN
from quintain_runner.spec.grader_options import NonEmptyString, Reducer, Reducers, SpecModel, required_repeats
from quintain_runner.spec.graders import GRADER_MODELS, GraderSpec, column_names_of, judges_among, named_graders
from quintain_runner.spec.prompts import CASE_AS_IT_IS, Prompt, PromptField, PromptMessage, PromptSpec, load_prompts

#: How old an answer of the cache may be, or ``off``.
CacheAge = Annotated[str, Field(pattern=f"^(off|{AGE_PATTERN})$")]

#: A value that ``where`` can compare a field with.
Scalar = str | int | float | bool | None


class DatasetSpec(SpecModel):
    """The source of the cases (one of file and command) and their selection: where is applied first, then sample, then
    limit.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["file"]}, {"required": ["command"]}]})

    file: NonEmptyString | None = None
    """The path of the dataset, relative to the evaluation file's folder."""
    command: Annotated[list[NonEmptyString], Field(min_length=1)] | None = None
    """A program and its arguments that prints the cases on stdout. It is run in the evaluation file's folder, once per
    results folder; a resumed run reuses the stored output.
    """
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the command."""
    env_from: list[NonEmptyString] = Field(default_factory=list)
    """Names of variables that the command also gets from the environment of the run."""
    run_as: NonEmptyString | None = None
    """The user of this machine as whom it runs, if Quintain runs as root."""
    sandbox: SandboxOption = None
    """bwrap: it runs in a sandbox of bubblewrap, which reaches no network, and of this machine's files
    only the evaluation's folder and the installed programs.
    """
    format: Literal["jsonl", "csv", "yaml"] | None = None
    """csv: a header row, then one row per case; yaml: a list of cases. If absent, a file whose name ends with .csv is
    CSV, and with .yaml or .yml YAML; everything else is jsonl.
    """
    fields: dict[NonEmptyString, NonEmptyString] | None = None
    """The dataset's own names of fields, by ours, such as {question: problem, expected: answer}. Then a row without an
    id has the hash of its content as its id.
    """
    where: dict[NonEmptyString, Scalar | list[Scalar]] = Field(default_factory=dict)
    """Select only rows in which each of these fields equals the value, or one of the listed values. Dots in a field
    name lead into nested objects.
    """
    sample: Annotated[int, Field(ge=1)] | None = None
    """How many of the remaining rows to select. The choice depends only on the seed and the ids, so it is the same in
    every run.
    """
    seed: int = 0
    """The seed of the sample; a different seed selects different rows."""
    choices_seed: int | None = 0
    """The seed of the order of each case's choices; null leaves them in the dataset's order."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Keep only this many of the remaining rows, the first in the order of the dataset."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        """Check that exactly one of ``file`` and ``command`` is given."""
        if (self.file is None) == (self.command is None):
            raise ValueError('give one of file (such as cases.jsonl) and command (such as ["python", "cases.py"])')
        return self

    @property
    def case_format(self) -> Literal["jsonl", "csv", "yaml"]:
        """How the cases are written: by ``format``, or else by the file's suffix."""
        suffix = Path(self.file or "").suffix.lower()
        return self.format or ("csv" if suffix == ".csv" else "yaml" if suffix in (".yaml", ".yml") else "jsonl")

    @property
    def selects_all_rows(self) -> bool:
        """Whether the dataset has no ``where``, ``sample`` or ``limit``, so that every row is a case."""
        return not self.where and self.sample is None and self.limit is None


def _expand_short_form(dataset: object) -> object:
    """Turn ``dataset: cases.jsonl`` into ``dataset: {file: cases.jsonl}``."""
    return {"file": dataset} if isinstance(dataset, str) else dataset


#: A `DatasetSpec` that may also be written as the path of a file alone; then every row is selected.
DatasetField = Annotated[
    DatasetSpec, BeforeValidator(_expand_short_form, json_schema_input_type=NonEmptyString | DatasetSpec)
]


#: A mean score or a pass rate.
Share = Annotated[float, Field(ge=0, le=1)]


class Thresholds(SpecModel):
    """The lowest values that count as success, from 0 to 1, over the rows of all targets."""

    score: Share | None = None
    """The lowest mean score."""
    pass_rate: Share | None = None
    """The lowest share of graded rows that passed."""
    graders: dict[NonEmptyString, Share] = Field(default_factory=dict)
    """The lowest mean score of each of these graders."""
    by: dict[NonEmptyString, dict[NonEmptyString, Share]] = Field(default_factory=dict)
    """The lowest mean score of the rows with these values, of fields that by of the evaluation names."""


def _expand_threshold(threshold: object) -> object:
    """Turn ``threshold: 0.8`` into ``threshold: {score: 0.8}``."""
    return {} if threshold is None else threshold if isinstance(threshold, dict) else {"score": threshold}


#: `Thresholds`, which may also be written as the lowest mean score alone.
ThresholdField = Annotated[
    Thresholds, BeforeValidator(_expand_threshold, json_schema_input_type=Share | Thresholds | None)
]


def _prepared(graders: object) -> object:
    """The graders with names; and with a weight, where they only compare answers: nothing else makes a score."""
    named = named_graders(graders)
    if isinstance(named, list) and all(isinstance(one, dict) and one.get("builtin") == "pairwise" for one in named):
        return [{"weight": 1.0, **one} for one in named]
    return named


class EvaluationSpec(SpecModel):
    """The content of an evaluation file. If ``targets`` is absent, the single configured target is used."""

    dataset: DatasetField
    """The cases: a file of JSON lines, CSV or YAML, or the output of a command; and which of its rows are selected."""
    targets: Annotated[list[TargetName], Field(min_length=1)] | None = None
    """The systems under test, by their names in the configuration."""
    prompts: Annotated[list[PromptField], Field(min_length=1)] | None = None
    """What each target is asked about each case. If absent, the question or the messages of the case."""
    max_calls: Count | None = None
    """The call budget of the whole run, graders included. If absent, the most calls that the run can need."""
    max_cost_usd: MaxCostUsd | None = None
    """The most that the run may cost, in US dollars, graders included. If absent, only max_calls limits it."""
    warn_at: WarnAt | None = None
    """The part of max_cost_usd at which the run says so, such as 0.8, when so much is spent or held."""
    cache: CacheAge | None = None
    """How old an answer of the cache may be that is taken in place of a call, such as 30d, 12h or 90m; off asks
    always. If absent, off.
    """
    max_body_bytes: BodyBytes | None = None
    """The size of the largest request, up to 16 MiB, and of the largest answer where it is more
    than 8 MiB. If absent, 1 MiB.
    """
    weight: Weight | None = None
    """The run's share of a provider key that it has together with others, from 1 to 100. If absent, 10."""
    priority: Priority | None = None
    """Which calls go first where a provider key is fully used: interactive, normal or batch. If absent, normal."""
    repeats: Annotated[int, Field(ge=1)] = 1
    """How many times each target answers each case, under each prompt."""
    threshold: ThresholdField = Thresholds()
    """The lowest mean score that counts as success, from 0 to 1; a run below it ends with exit code 3. A map also has
    pass_rate, the lowest mean score of graders, and that of values of fields (by).
    """
    graders: Annotated[list[GraderSpec], Field(min_length=1), BeforeValidator(_prepared)] = Field(default_factory=list)
    """The graders of every answer; the score of a row is the mean of their scores and of those of the case's own
    graders, by their weights. Without any each case has graders of its own.
    """
    reduce: Reducer | None = None
    """How the repeats of a case become one value: mean, median, majority, pass@k (one of k answers passes) or pass^k
    (all of k pass). It is shown beside the mean score.
    """
    labels: NonEmptyString | None = None
    """The path of a file of labels, relative to the evaluation file's folder: a line {"id", "output", "pass"} for each
    answer that a person judged. quintain calibrate compares the judges with them.
    """
    by: list[NonEmptyString] = Field(default_factory=list)
    """Fields of the case: the results are also shown for each of their values. Dots lead into nested objects."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        """Check that no target, no prompt and no grader name appears twice."""
        for what, names in (
            ("targets", self.targets or []),
            ("prompts", [prompt.named(number) for number, prompt in enumerate(self.prompts or [], start=1)]),
            ("graders", self.column_names),
        ):
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ValueError(f"{what}: named twice: {', '.join(duplicates)}; give each its own name")
        return self

    @model_validator(mode="after")
    def _can_be_scored(self) -> Self:
        """Check that no reducer needs more repeats than there are."""
        for reducer in (self.reduce, *(grader.reduce for grader in self.graders)):
            if reducer is not None and required_repeats(reducer) > self.repeats:
                raise ValueError(f"reduce: {reducer} needs {required_repeats(reducer)} repeats, not {self.repeats}")
        return self

    @property
    def column_names(self) -> list[str]:
        """The names of the columns that its graders have in every table."""
        return [name for grader in self.graders for name in column_names_of(grader)]

    @property
    def reducers(self) -> Reducers:
        """The reducers of the rows and of each grader."""
        graders = {grader.name: grader.reduce or self.reduce for grader in self.graders}
        return Reducers(
            row=self.reduce, graders={name: reducer for name, reducer in graders.items() if reducer is not None}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation file after it was read: its path, its text and its validated content.

    ``prompts`` are the prompts with their files read: one at least. ``judges_only``: its other graders are left out.
    ``only_prompts`` and ``only_graders`` are the names of those that a command selects; none: it has all.
    ``grader_names`` are the names of the columns of all graders of the file.
    ``graders_without_session`` names the graders that are known to make no calls; it is empty until the functions among
    them were imported.
    """

    path: Path
    text: str
    spec: EvaluationSpec
    prompts: tuple[Prompt, ...] = (CASE_AS_IT_IS,)
    judges_only: bool = False
    only_prompts: tuple[str, ...] = ()
    only_graders: tuple[str, ...] = ()
    grader_names: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    graders_without_session: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The run's name: the file name without its suffix."""
        return self.path.stem

    @property
    def prompt_names(self) -> list[str]:
        """The names of the prompts; none if the cases are asked as they are."""
        return [prompt.name for prompt in self.prompts if prompt.name is not None]

    @property
    def asked_prompts(self) -> tuple[Prompt, ...]:
        """The prompts that are selected."""
        return tuple(one for one in self.prompts if not self.only_prompts or one.name in self.only_prompts)

    @property
    def numbered_graders(self) -> list[tuple[int, GraderSpec]]:
        """The graders that are selected, with their places in the file."""
        numbered = enumerate(self.spec.graders)
        return [(index, one) for index, one in numbered if not self.only_graders or one.name in self.only_graders]

    @property
    def graders(self) -> list[GraderSpec]:
        """The graders that are selected."""
        return [grader for _, grader in self.numbered_graders]

    def selecting(self, prompts: Sequence[str], graders: Sequence[str]) -> Evaluation:
        """The evaluation with only these prompts and graders selected, which may also be graders of its cases.

        Raises `ConfigError` for an unknown prompt.
        """
        if unknown := next((name for name in prompts if name not in self.prompt_names), None):
            raise ConfigError(
                f"--prompt: unknown prompt {unknown!r}{suggestion(unknown, self.prompt_names or ['none'])}"
            )
        return replace(self, only_prompts=tuple(prompts), only_graders=tuple(graders))

    def trials_of(self, cases: int, *, targets: int) -> int:
        """The number of trials of so many cases and targets: each case under each prompt, once for each repeat."""
        return cases * targets * len(self.asked_prompts) * self.spec.repeats

    @property
    def folder(self) -> Path:
        """The absolute path of the file's folder: paths in the file are relative to it, and graders run in it."""
        return self.path.absolute().parent

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file's text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


_MODELS: ModelsByPlace = {
    (): EvaluationSpec,
    ("dataset",): DatasetSpec,
    ("threshold",): Thresholds,
    ("prompts", "*"): PromptSpec,
    ("prompts", "*", "messages", "*"): PromptMessage,
    **{("graders", "*", *place): model for place, model in GRADER_MODELS.items()},
}


def load_evaluation(path: Path, *, judges_only: bool = False, overrides: Sequence[Override] = ()) -> Evaluation:
    """Read and validate an evaluation file, with these values in place of its own, and read the files of its prompts.

    With ``judges_only`` it has no other graders, and no threshold. Raises `ConfigError` with one line for each error in
    the file or of an override, each naming the place.

    Example::

        evaluation = load_evaluation(Path("eval.yaml"))
        print(evaluation.name, evaluation.spec.repeats)
    """
    errors: list[str] = []
    document, overridden = read_yaml(path, errors), OverriddenFile(path, overrides)
    tree = _expanded(document.value) if overrides else document.value
    try:
        spec = _read_spec(overridden.tree(tree))
    except ValidationError as error:
        errors.extend(validation_messages(error, _MODELS))
    if errors:
        raise overridden.error(tree, errors)
    names = frozenset(spec.column_names)
    if judges_only:
        judges = list(judges_among(spec.graders))
        spec = spec.model_copy(update={"graders": judges, "threshold": Thresholds(), "reduce": None, "by": []})
    prompts = load_prompts(spec.prompts or (), path.absolute().parent)
    return Evaluation(
        path=path,
        text=read_text(path),
        spec=spec,
        prompts=prompts,
        judges_only=judges_only,
        grader_names=names,
        notes=[f"{path}: {note}" for note in document.notes(lambda one: _read_spec(overridden.tree(_expanded(one))))],
    )


def _expanded(content: object) -> object:
    """The file's tree, in which the dataset has keys, and graders have the names that overrides may call them by."""
    if not isinstance(content, dict):
        return content
    expanded = {"dataset": _expand_short_form(content.get("dataset")), "graders": named_graders(content.get("graders"))}
    return {key: expanded.get(key, value) for key, value in content.items()}


def _read_spec(content: object) -> EvaluationSpec:
    return EvaluationSpec.model_validate({} if content is None else content)


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def evaluation_schema() -> dict[str, JsonValue]:
    """The JSON schema of ``eval.yaml``, including its short forms."""
    schema: dict[str, JsonValue] = EvaluationSpec.model_json_schema(schema_generator=DescribedSchema)
    return {"$schema": DIALECT, **schema, "title": "An evaluation of quintain run"}
