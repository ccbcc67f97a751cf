"""The evaluation file (``protocol.md`` §8): dataset, targets, graders, repeats, budget and threshold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from quintain.config.yaml_file import read_yaml
from quintain.contracts.session import Count
from quintain.contracts.strings import TargetName
from quintain_runner.spec.dataset import DatasetField, DatasetSpec
from quintain_runner.spec.graders import GRADER_MODELS, GraderSpec, SpecModel
from quintain_runner.spec.validation_errors import ModelsByPlace, config_error, validation_messages


class EvaluationSpec(SpecModel):
    """What the file says. ``targets`` is None where it names none: then the only one configured is meant."""

    dataset: DatasetField
    """The cases: a file of JSON lines or CSV, or what a command prints; and which of them count."""
    targets: Annotated[list[TargetName], Field(min_length=1)] | None = None
    """The systems under test, by the names they have in the configuration."""
    max_calls: Count | None = None
    """The budget of the whole run in calls, graders included; if absent, what the plan can need at most."""
    repeats: Annotated[int, Field(ge=1)] = 1
    """How often each target is asked each case."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """The least mean score; below it the exit code is 3."""
    graders: Annotated[list[GraderSpec], Field(min_length=1)]
    """Who grades; a row's score is their mean."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for what, names in (
            ("targets", self.targets or []),
            ("graders", [grader.name for grader in self.graders]),
        ):
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ValueError(f"{what}: named twice: {', '.join(duplicates)}; give each its own name")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation file that was read: where it stands, its text, and what it says."""

    path: Path
    text: str
    spec: EvaluationSpec

    @property
    def name(self) -> str:
        """The run's name: the file's, without its ending."""
        return self.path.stem

    @property
    def folder(self) -> Path:
        """Where its graders run, and where every path in it starts."""
        return self.path.absolute().parent

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file's text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


_MODELS: ModelsByPlace = {
    (): EvaluationSpec,
    ("dataset",): DatasetSpec,
    **{("graders", "*", *place): model for place, model in GRADER_MODELS.items()},
}


def load_evaluation(path: Path) -> Evaluation:
    """Read an evaluation file. Raises `ConfigError` that tells every mistake of the file, with its place."""
    content, errors = read_yaml(path)
    try:
        spec = EvaluationSpec.model_validate({} if content is None else content)
    except ValidationError as error:
        errors.extend(validation_messages(error, _MODELS))
    if errors:
        raise config_error(path, errors)
    return Evaluation(path=path, text=path.read_text(encoding="utf-8"), spec=spec)
