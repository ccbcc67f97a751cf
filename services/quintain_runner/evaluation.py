"""The evaluation file (``protocol.md`` §8): which dataset, which targets, which graders, at what cost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from quintain.config.yaml_file import read_yaml
from quintain.contracts.metadata import DEFAULT_MAX_CALLS, Count
from quintain.contracts.names import TargetName
from quintain_runner.mistakes import Models, refusal, sentences

#: How long one grader execution may take where the file says nothing, in seconds; AgentV's default.
DEFAULT_TIMEOUT_SECONDS = 120.0

#: A grader's name is a key of the results and a part of its session's label: one line of text.
GraderName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,64}$")]
Word = Annotated[str, StringConstraints(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GraderCalls(_Section):
    """What one execution of a grader may call."""

    max_calls: Count = DEFAULT_MAX_CALLS


class GraderSpec(_Section):
    """One grader: an executable under AgentV's contract, or one that is built in."""

    name: GraderName
    command: Annotated[list[Word], Field(min_length=1)] | None = None
    builtin: Literal["exact", "contains"] | None = None
    judge_target: TargetName | None = None
    target: GraderCalls = GraderCalls()
    timeout_seconds: Annotated[float, Field(gt=0)] = DEFAULT_TIMEOUT_SECONDS

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.command is None) == (self.builtin is None):
            raise ValueError('give one of command (such as ["python", "judge.py"]) and builtin (such as exact)')
        return self


class EvaluationSpec(_Section):
    """What the file says. ``targets`` is None where it names none: then the only one configured is meant."""

    dataset: Word
    targets: Annotated[list[TargetName], Field(min_length=1)] | None = None
    max_calls: Count | None = None
    repeats: Annotated[int, Field(ge=1)] = 1
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    graders: Annotated[list[GraderSpec], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        for what, names in (
            ("targets", self.targets or []),
            ("graders", [grader.name for grader in self.graders]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: named twice: {', '.join(twice)}; give each its own name")
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
        """Where its graders run, and what its dataset's path is relative to."""
        return self.path.absolute().parent

    @property
    def dataset(self) -> Path:
        """The dataset's file."""
        return self.folder / self.spec.dataset

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file's text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


_MODELS: Models = {(): EvaluationSpec, ("graders", "*"): GraderSpec, ("graders", "*", "target"): GraderCalls}


def load_evaluation(path: Path) -> Evaluation:
    """Read an evaluation file. Raises `ConfigError` that tells every mistake of the file, with its place."""
    content, mistakes = read_yaml(path)
    try:
        spec = EvaluationSpec.model_validate({} if content is None else content)
    except ValidationError as error:
        mistakes.extend(sentences(error, _MODELS))
    if mistakes:
        raise refusal(path, mistakes)
    return Evaluation(path=path, text=path.read_text(encoding="utf-8"), spec=spec)
