"""The models of built-in graders that ask other models: for a verdict, a comparison or embeddings. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator

from quintain.contracts.values import MAX_DEADLINE_SECONDS, Count, TargetName
from quintain_runner.spec.builtin_graders import ComparingGrader
from quintain_runner.spec.grader_options import GraderOptions, NonEmptyString, SpecModel, TemplateText, Weight

#: Default timeout of a judge's call, in seconds, including its time in the target's queue.
JUDGE_TIMEOUT_SECONDS = 600.0

#: How the votes of a jury make its verdict.
VoteRule = Literal["majority", "mean", "all"]


#: How many characters a judge is shown at most, if its grader does not say.
DEFAULT_SHOW_CHARACTERS = 100_000

#: The sections of what a target did, and those of its answer: one of them is what is judged.
ACTIVITY_SECTIONS: Final = ("tool_calls", "steps")
ANSWER_SECTIONS: Final = ("output", *ACTIVITY_SECTIONS)

#: The sections that Quintain has itself; others are the fields of a case's metadata.
OWN_SECTIONS: Final = ("question", "conversation", "system_prompt", "expected", *ANSWER_SECTIONS)


class RubricCriterion(SpecModel):
    """A criterion that a judge scores by itself."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """Its name in the results."""
    text: TemplateText
    """What the judge is told to judge; a template, but for a grader that a case has."""
    weight: Weight = 1.0
    """The weight of its score in the grader's; 0: it is only reported."""
    required: bool = False
    """Whether the answer passes only if it passes this criterion, with a score of at least 0.5."""


class JudgeGrader(GraderOptions):
    """A model grades the answer: one call, which returns a verdict as JSON; or several do, and vote."""

    builtin: Literal["llm-judge"]
    prompt: NonEmptyString | None = None
    """The path of the file with the judge's instructions, a template, relative to the evaluation file's folder. With a
    rubric there need be none.
    """
    instructions: TemplateText | None = None
    """The judge's instructions themselves, in place of a file; a template, but for a grader that a case has."""
    rubric: list[RubricCriterion] = Field(default_factory=list)
    """Criteria that are judged in one call, each with a score of its own; the grader's is their mean by their weights.
    """
    judge_target: TargetName | None = None
    """The target that judges. If absent, the judge_target that the configuration names for the target under test;
    failing that, the target under test itself.
    """
    judge_targets: Annotated[list[TargetName], Field(min_length=2)] | None = None
    """The targets of a jury, in place of judge_target: each is asked by itself, and they vote."""
    vote: VoteRule = "majority"
    """What the votes of a jury must say for an answer to pass: more of them pass than fail it (majority), their mean
    score is at least 0.5 (mean), or each judge of the jury passes it (all).
    """
    min_votes: Count = 2
    """With how many votes a jury has a verdict though others are missing; with fewer the row is an error."""
    show: Annotated[list[NonEmptyString], Field(min_length=1)] | None = None
    """The sections that the judge sees: question, conversation, system_prompt, expected, output, tool_calls, steps, and
    any field of the row; dots lead into nested objects. One that no case has is an error. If absent, question, expected
    and output; conversation in place of question where a case has messages or turns; and steps of an answer that has
    any.
    """
    max_show_characters: Annotated[int, Field(ge=1)] = DEFAULT_SHOW_CHARACTERS
    """The most characters of all sections together. Of more, the longest lose their middles, and the judge is told."""
    structured: bool = False
    """Whether to request structured output from the provider, so that the verdict follows its schema (openai and
    anthropic).
    """
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS)] = JUDGE_TIMEOUT_SECONDS
    """The timeout of the judge's call, in seconds, including its time in the queue. If absent, 600, or that of its
    target where it is more.
    """

    @property
    def may_show_steps(self) -> bool:
        """Whether the judge is shown what the target did, if it did something."""
        return self.show is None or not set(ACTIVITY_SECTIONS).isdisjoint(self.show)

    @property
    def vote_type(self) -> Literal["pass", "score"] | None:
        """What each vote of a jury must say, so that the votes can be counted; None of one judge, which may choose."""
        if self.judge_targets is None:
            return None
        return "score" if self.vote == "mean" else "pass"

    @field_validator("show")
    @classmethod
    def _validate_show(cls, show: list[str] | None) -> list[str] | None:
        """Check that the judge sees the answer, or what the target did."""
        if show is not None and "messages" in show:
            raise ValueError("messages: what was said before the answer is named conversation")
        if show is not None and set(ANSWER_SECTIONS).isdisjoint(show):
            near = get_close_matches("output", show, n=1)
            hint = f"; did you mean it by {near[0]!r}?" if near else ""
            raise ValueError(f"it leaves out output, and that is what is judged{hint}")
        return show

    @model_validator(mode="after")
    def _validate_jury(self) -> Self:
        """Check that the jury can come to a verdict."""
        if self.judge_targets is None:
            if alone := sorted({"vote", "min_votes"} & self.model_fields_set):
                raise ValueError(f"{alone[0]} is of a jury; name its judges in judge_targets, or leave it out")
            return self
        if self.judge_target is not None:
            raise ValueError("give judge_target, one judge, or judge_targets, a jury, and not both")
        if twice := sorted({name for name in self.judge_targets if self.judge_targets.count(name) > 1}):
            raise ValueError(f"judge_targets: {twice[0]!r} is there twice; a judge has one vote")
        if not 1 <= self.min_votes <= len(self.judge_targets):
            raise ValueError(f"min_votes: give 1 to {len(self.judge_targets)}, which is the size of the jury")
        return self

    @model_validator(mode="after")
    def _validate_instructions(self) -> Self:
        """Check that the judge is told what to judge."""
        if self.prompt is not None and self.instructions is not None:
            raise ValueError("give prompt, a file with the judge's instructions, or instructions, and not both")
        if self.prompt is None and self.instructions is None and not self.rubric:
            raise ValueError("give prompt, a file with the judge's instructions, or rubric, or instructions as a text")
        names = [criterion.id for criterion in self.rubric]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"rubric: {twice[0]!r} is there twice; give each criterion its own id")
        if self.rubric and not any(criterion.weight for criterion in self.rubric):
            raise ValueError("rubric: every weight is 0; give at least one criterion a weight")
        return self


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
