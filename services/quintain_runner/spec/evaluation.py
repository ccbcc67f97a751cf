"""The evaluation file (``protocol.md`` §8): dataset, targets, graders, repeats, call budget and threshold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from quintain.config.yaml_file import read_yaml
from quintain.contracts.limits import BodyBytes
from quintain.contracts.session import Count
from quintain.contracts.strings import TargetName
from quintain_runner.spec.dataset import DatasetField, DatasetSpec
from quintain_runner.spec.graders import GRADER_MODELS, GraderSpec, NonEmptyString, SpecModel
from quintain_runner.spec.prompts import CASE_AS_IT_IS, Prompt, PromptField, PromptMessage, PromptSpec, load_prompts
from quintain_runner.spec.reducers import Reducer, Reducers, required_repeats
from quintain_runner.spec.validation_errors import ModelsByPlace, config_error, validation_messages


class EvaluationSpec(SpecModel):
    """The content of an evaluation file. If ``targets`` is absent, the single configured target is used."""

    dataset: DatasetField
    """The cases: a file of JSON lines or CSV, or the output of a command; and which of its rows are selected."""
    targets: Annotated[list[TargetName], Field(min_length=1)] | None = None
    """The systems under test, by their names in the configuration."""
    prompts: Annotated[list[PromptField], Field(min_length=1)] | None = None
    """What each target is asked about each case. If absent, the question or the messages of the case."""
    max_calls: Count | None = None
    """The call budget of the whole run, graders included. If absent, the most calls that the run can need."""
    max_body_bytes: BodyBytes | None = None
    """The size of the largest request, up to 16 MiB without a content store, and of the largest answer where it is more
    than 8 MiB. If absent, 1 MiB.
    """
    repeats: Annotated[int, Field(ge=1)] = 1
    """How many times each target answers each case, under each prompt."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """The lowest mean score that counts as success, from 0 to 1; a run below it ends with exit code 3."""
    graders: Annotated[list[GraderSpec], Field(min_length=1)]
    """The graders of every answer; the score of a row is the mean of their scores, by their weights."""
    reduce: Reducer | None = None
    """How the repeats of a case become one value: mean, median, majority, pass@k (one of k answers passes) or pass^k
    (all of k pass). It is shown beside the mean score.
    """
    by: list[NonEmptyString] = Field(default_factory=list)
    """Fields of the case: the results are also shown for each of their values. Dots lead into nested objects."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        """Check that no target, no prompt and no grader name appears twice."""
        for what, names in (
            ("targets", self.targets or []),
            ("prompts", [prompt.named(number) for number, prompt in enumerate(self.prompts or [], start=1)]),
            ("graders", [grader.name for grader in self.graders]),
        ):
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ValueError(f"{what}: named twice: {', '.join(duplicates)}; give each its own name")
        return self

    @model_validator(mode="after")
    def _can_be_scored(self) -> Self:
        """Check that some grader has a weight, and that no reducer needs more repeats than there are."""
        if not any(grader.weight for grader in self.graders):
            raise ValueError("graders: every weight is 0, so that no row has a score; give one of them a weight")
        for reducer in (self.reduce, *(grader.reduce for grader in self.graders)):
            if reducer is not None and required_repeats(reducer) > self.repeats:
                raise ValueError(f"reduce: {reducer} needs {required_repeats(reducer)} repeats, not {self.repeats}")
        return self

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

    ``prompts`` are the prompts with their files read: one at least.
    ``graders_without_session`` names the graders that are known to make no calls; it is empty until the functions among
    them were imported. ``unavailable_graders`` cannot be run any more, each with the reason: rows with their verdicts
    are kept.
    """

    path: Path
    text: str
    spec: EvaluationSpec
    prompts: tuple[Prompt, ...] = (CASE_AS_IT_IS,)
    graders_without_session: frozenset[str] = frozenset()
    unavailable_graders: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's name: the file name without its suffix."""
        return self.path.stem

    @property
    def prompt_names(self) -> list[str]:
        """The names of the prompts; none if the cases are asked as they are."""
        return [prompt.name for prompt in self.prompts if prompt.name is not None]

    def trials_of(self, cases: int, *, targets: int) -> int:
        """The number of trials of so many cases and targets: each case under each prompt, once for each repeat."""
        return cases * targets * len(self.prompts) * self.spec.repeats

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
    ("prompts", "*"): PromptSpec,
    ("prompts", "*", "messages", "*"): PromptMessage,
    **{("graders", "*", *place): model for place, model in GRADER_MODELS.items()},
}


def load_evaluation(path: Path) -> Evaluation:
    """Read and validate an evaluation file, and read the files of its prompts.

    Raises `ConfigError` with one line for each error in the file, each naming the place.

    Example::

        evaluation = load_evaluation(Path("eval.yaml"))
        print(evaluation.name, evaluation.spec.repeats)
    """
    content, errors = read_yaml(path)
    try:
        spec = EvaluationSpec.model_validate({} if content is None else content)
    except ValidationError as error:
        errors.extend(validation_messages(error, _MODELS))
    if errors:
        raise config_error(path, errors)
    prompts = load_prompts(spec.prompts or (), path.absolute().parent)
    return Evaluation(path=path, text=path.read_text(encoding="utf-8"), spec=spec, prompts=prompts)
