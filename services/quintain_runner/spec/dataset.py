"""The ``dataset`` section of an evaluation file: the source of the cases and which of them are selected. No I/O."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from quintain.program_confinement import SandboxOption
from quintain_runner.spec.graders import NonEmptyString, SpecModel

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
    format: Literal["jsonl", "csv"] | None = None
    """csv: a header row, then one row per case. If absent, a file whose name ends with .csv is CSV; everything else is
    jsonl.
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
    limit: Annotated[int, Field(ge=1)] | None = None
    """Keep only this many of the remaining rows, the first in the order of the dataset."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        """Check that exactly one of ``file`` and ``command`` is given."""
        if (self.file is None) == (self.command is None):
            raise ValueError('give one of file (such as cases.jsonl) and command (such as ["python", "cases.py"])')
        return self

    @property
    def is_csv(self) -> bool:
        """Whether the cases are CSV: by ``format``, or else by the file's suffix ``.csv``."""
        if self.format is None:
            return self.file is not None and self.file.lower().endswith(".csv")
        return self.format == "csv"

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
