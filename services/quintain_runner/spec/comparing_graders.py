"""The models of graders that compare an answer with another text by a model's help. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from quintain.contracts.values import MAX_DEADLINE_SECONDS, TargetName
from quintain_runner.spec.grader_options import GraderOptions, NonEmptyString, Weight
from quintain_runner.spec.judge_graders import DEFAULT_SHOW_CHARACTERS, JUDGE_TIMEOUT_SECONDS
from quintain_runner.spec.text_graders import ComparingGrader

_Timeout = Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS)]


class SimilarGrader(ComparingGrader):
    """Passes if the answer means what is expected, by the cosine similarity of their embeddings: one call."""

    builtin: Literal["similar"]
    embedding_target: TargetName
    """The target that embeds both texts: an openai target with the api embeddings."""
    threshold: Annotated[float, Field(ge=-1, le=1)]
    """The lowest cosine similarity that passes."""
    timeout_seconds: _Timeout = JUDGE_TIMEOUT_SECONDS
    """The timeout of the call, in seconds, including its time in the queue. If absent, 600, or that of its target where
    it is more.
    """

    def _problem_of_one(self, answer: JsonValue) -> str | None:
        return "there is no embedding of an empty text" if answer == "" else super()._problem_of_one(answer)


class PairwiseGrader(GraderOptions):
    """A model compares the answer with those of other targets to the same case, in both orders: win 1, tie ½, loss 0.

    It runs when the run's answers are there.
    """

    builtin: Literal["pairwise"]
    against: NonEmptyString
    """all: every other target. A target's name: that target. A path with a slash: the answers of the run in this
    folder, relative to the evaluation file's folder.
    """
    orders: Literal["both"] = "both"
    """both: each pair is asked in both orders, and what is not chosen in both is a tie."""
    prompt: NonEmptyString | None = None
    """The path of the file with the judge's instructions, a template, relative to the evaluation file's folder. If
    absent, it is asked which answer is better.
    """
    judge_target: TargetName
    """The target that judges."""
    weight: Weight = 0.0
    """The weight of its score in the row's mean. If absent, 1 where the evaluation has no other kind of grader, and
    else 0: reported, and counted neither in the score nor in the pass.
    """
    max_show_characters: Annotated[int, Field(ge=1)] = DEFAULT_SHOW_CHARACTERS
    """The most characters that the judge is shown of the task and both answers. Of more, the longest lose their
    middles, and the judge is told.
    """
    structured: bool = False
    """Whether to request structured output from the provider, so that the verdict follows its schema (openai and
    anthropic).
    """
    timeout_seconds: _Timeout = JUDGE_TIMEOUT_SECONDS
    """The timeout of one of the judge's calls, in seconds, including its time in the queue. If absent, 600, or that of
    its target where it is more.
    """

    @property
    def other_run(self) -> str | None:
        """The folder of the run whose answers its answers are compared with; None if they are this run's."""
        return self.against if "/" in self.against else None

    def most_calls(self, targets: int) -> int:
        """The most calls that one question to so many targets takes: two for each pair."""
        pairs = {"all": targets * (targets - 1) // 2}.get(self.against, targets - 1)
        return 2 * (pairs if self.other_run is None else targets)

    def opponents(self, target: str, targets: Sequence[str]) -> list[str]:
        """The targets of the same run with whose answers those of ``target`` are compared."""
        if self.other_run is not None:
            return []
        others = [name for name in targets if name != target]
        return others if self.against in ("all", target) else [name for name in others if name == self.against]
