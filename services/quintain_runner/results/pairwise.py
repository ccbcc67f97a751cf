"""What a row keeps of the comparisons of its answer with those of other targets. No I/O."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quintain.contracts.message import Message
from quintain_runner.results.answer import is_none

#: Which of two answers is better, by the place in which it was shown.
Choice = Literal["first", "second", "tie"]

#: The place of an answer that is chosen in both orders.
Position = Literal["first", "second"]


class PairwiseVote(Message):
    """What the judge said of two answers in one order: its choice, or an error. ``calls`` were charged for it."""

    choice: Choice | None = Field(default=None, exclude_if=is_none)
    reason: str | None = Field(default=None, exclude_if=is_none)
    error: str | None = Field(default=None, exclude_if=is_none)
    calls: int = 0
    request_id: str | None = Field(default=None, exclude_if=is_none)


class PairwiseRow(Message):
    """One comparison of a row's answer with that of ``opponent``, a column of the run or of another one.

    ``answer`` is the hash of what the opponent said and did. In ``own_first`` the row's own answer was shown first.
    """

    opponent: str
    answer: str
    own_first: PairwiseVote
    own_second: PairwiseVote

    @property
    def score(self) -> float | None:
        """1 for a win in both orders, 0 for a loss in both, else ½; None where a vote is missing."""
        choices = self.own_first.choice, self.own_second.choice
        if None in choices:
            return None
        return {("first", "second"): 1.0, ("second", "first"): 0.0}.get(choices, 0.5)  # type: ignore[arg-type]

    @property
    def is_asked(self) -> bool:
        """Whether the judge was asked: about equal answers it is not."""
        return self.own_first.request_id is not None

    @property
    def position(self) -> Position | None:
        """The place that the judge chose in both orders; None where it did not, or a vote is missing."""
        choice = self.own_first.choice
        return choice if choice == self.own_second.choice and choice != "tie" else None
