"""The dataset section of an evaluation file: where the cases come from and which of them are selected. No I/O."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from quintain_runner.spec.graders import NonEmptyString, SpecModel

#: What a field is compared with.
Scalar = str | int | float | bool | None


class DatasetSpec(SpecModel):
    """Where the cases come from (one of file and command), and which of them count: where, then sample, then limit."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["file"]}, {"required": ["command"]}]})

    file: NonEmptyString | None = None
    """The path of the file from the evaluation file's folder."""
    command: Annotated[list[NonEmptyString], Field(min_length=1)] | None = None
    """A program in that folder that prints the cases; it runs once, and a run keeps what it printed."""
    format: Literal["jsonl", "csv"] | None = None
    """csv: a header row, then a row a case. If absent, csv for a file named so and jsonl for everything else."""
    where: dict[NonEmptyString, Scalar | list[Scalar]] = Field(default_factory=dict)
    """Only rows in which each of these fields is this value, or one of these; dots lead into objects."""
    sample: Annotated[int, Field(ge=1)] | None = None
    """So many of the rows, chosen by seed and id: the same ones each time."""
    seed: int = 0
    """Another seed is another sample."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """The first so many of what is left, in the dataset's order."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.file is None) == (self.command is None):
            raise ValueError('give one of file (such as cases.jsonl) and command (such as ["python", "cases.py"])')
        return self

    @property
    def is_csv(self) -> bool:
        """Whether the cases are comma-separated values."""
        if self.format is None:
            return self.file is not None and self.file.lower().endswith(".csv")
        return self.format == "csv"

    @property
    def selects_all_rows(self) -> bool:
        """Whether every row counts."""
        return not self.where and self.sample is None and self.limit is None


def _expand_short_form(dataset: object) -> object:
    return {"file": dataset} if isinstance(dataset, str) else dataset


#: A path alone is a file of which every row counts.
DatasetField = Annotated[
    DatasetSpec, BeforeValidator(_expand_short_form, json_schema_input_type=NonEmptyString | DatasetSpec)
]
