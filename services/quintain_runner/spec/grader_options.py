"""What every kind of grader has in an evaluation file, and the types and the base class of such models. No I/O."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, ValidationInfo

from quintain.config.fingerprint import fingerprint_of
from quintain.contracts.message import Message
from quintain.contracts.session import AGENTS
from quintain_runner.results.bill import SIMULATED_USER
from quintain_runner.spec.templates import parse_template

_AT_K: Final = re.compile(r"pass[@^](\d+)")

#: ``mean``, ``median``, ``majority``, ``pass@k`` or ``pass^k``, with a number in place of k.
Reducer = Annotated[str, StringConstraints(pattern=r"^(mean|median|majority|pass[@^][1-9][0-9]{0,3})$")]


class Reducers(Message):
    """The reducers of the rows and of each grader; None or absent where nothing is reduced."""

    row: Reducer | None = None
    graders: dict[str, Reducer] = Field(default_factory=dict)


def required_repeats(reducer: str) -> int:
    """The fewest repeats of a case that a reducer needs: its ``k``, or 1."""
    at_k = _AT_K.fullmatch(reducer)
    return int(at_k[1]) if at_k else 1


#: The name of a grader: a key of the results and part of its session's label, so it must be one line of text.
GraderName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,64}$")]
NonEmptyString = Annotated[str, StringConstraints(min_length=1)]
Seconds = Annotated[float, Field(gt=0)]
Tolerance = Annotated[float, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]


class SpecModel(BaseModel):
    """Base class of the models of a file written by a person: frozen, strict, and unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
    )


def _check_is_free(name: str) -> str:
    if name in {SIMULATED_USER, AGENTS}:
        raise ValueError(f"{name!r} stands for calls that are no grader's; give another name")
    return name


#: The keys of a grader that change no verdict, and those that are replaced by what they name.
KEYS_WITHOUT_EFFECT: Final = frozenset(
    {
        "target",
        "timeout_seconds",
        "judge_target",
        "judge_targets",
        "min_votes",
        "embedding_target",
        "against",
        "depends_on",
        "command",
        "function",
        "prompt",
        "weight",
        "reduce",
        "run_as",
        "sandbox",
        "cacheable",
    }
)


#: The key of a validation's context that says that what is validated comes with a dataset.
IS_DATA: Final = "is_data"


def check_template(text: str, info: ValidationInfo) -> str:
    """Check that a text of an evaluation file is a template; what comes with a dataset is none."""
    if not (info.context or {}).get(IS_DATA):
        parse_template(text)
    return text


#: A text of an evaluation file that is a template, and of a dataset one that is data.
TemplateText = Annotated[NonEmptyString, AfterValidator(check_template)]


class GraderOptions(SpecModel):
    """The options that every grader has."""

    name: Annotated[GraderName, AfterValidator(_check_is_free)] = ""
    """The name of the grader in the results. If absent, its kind, with a number where others have that name."""
    negate: bool = Field(default=False, alias="not")
    """Whether to turn the verdict around: what would pass fails, and the score is 1 without it. An error stays one."""
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """The lowest score that passes, before not turns it around. If absent, the grader says itself what passes."""
    depends_on: list[NonEmptyString] = Field(default_factory=list)
    """Files, from the evaluation file's folder, whose bytes are part of the grader's fingerprint."""
    weight: Weight = 1.0
    """The weight of its score in the row's mean; 0: reported, and counted neither in the score nor in the pass."""
    reduce: Reducer | None = None
    """How the repeats of a case become one value: mean, median, majority, pass@k or pass^k. If absent, as the
    evaluation says.
    """
    _is_data: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any) -> None:
        """Note whether it comes with a dataset: its texts are data then, and no templates."""
        self._is_data = context is not None and bool(context.get(IS_DATA))

    @property
    def is_data(self) -> bool:
        """Whether it is a case's own, whose texts are data and no templates."""
        return self._is_data

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of what it says itself, without the files and the targets that it names."""
        return fingerprint_of(self.model_dump(mode="json", by_alias=True, exclude=set(KEYS_WITHOUT_EFFECT)))
