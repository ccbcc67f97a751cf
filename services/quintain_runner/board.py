"""What a run shows: the counts per target, what is under way, and the errors nobody has shown yet. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from quintain_runner.cost import Cost
from quintain_runner.finishing import calls_left
from quintain_runner.gauges import BudgetGauge, GraderGauge, TargetGauge
from quintain_runner.kept import Kept
from quintain_runner.plan import Again
from quintain_runner.rows import Mark, Row
from quintain_runner.tally import Tally

#: How many errors wait to be shown; the rest is in the results.
_ERRORS_WAITING = 20


class Board:
    """What a run has done so far. The tallies hold the rows of before too; the gauges this invocation alone."""

    def __init__(
        self, targets: Sequence[str], *, cases: int, repeats: int, kept: Kept, again: Again | None = None
    ) -> None:
        self.cases = cases
        self.tallies = {target: Tally(cases * repeats) for target in targets}
        for (target, repeat), tally in kept.tallies.items():
            if target in self.tallies and repeat <= repeats:
                self.tallies[target] += tally
        tallies, again = list(self.tallies.values()), again or Again()
        self.resumed = _resumed(tallies, again)
        #: How many trials this invocation is to ask.
        self.asked = sum(
            tally.trials - tally.graded - tally.errors * (not again.errors) - tally.in_doubt * (not again.in_doubt)
            for tally in tallies
        )
        #: What every row in the folder was charged, those too that this run does not ask for.
        self.calls_in_rows = sum(tally.calls for tally in kept.tallies.values())
        self.gauges = {target: TargetGauge() for target in targets}
        self.graders: dict[str, GraderGauge] = {}
        self.budget = BudgetGauge()
        #: What it cost, as far as that is known, when it was last asked.
        self.cost: Cost | None = None
        self._errors: deque[str] = deque(maxlen=_ERRORS_WAITING)

    @property
    def wanted(self) -> int:
        """How many calls the whole run is reckoned to take, as far as its graded rows tell."""
        return self.budget.calls + calls_left(self.tallies.values(), most_per_trial=1)

    def begin(self, target: str) -> None:
        """A trial of this target is under way."""
        self.gauges[target].in_flight += 1

    def end(self, target: str) -> None:
        """A trial of this target has ended, however."""
        self.gauges[target].in_flight -= 1

    def add(self, row: Row, before: Mark | None = None) -> None:
        """Count a row of this run; ``before`` is what the row left that it supersedes."""
        tally = self.tallies[row.target]
        if before is not None:
            tally.add(before, times=-1)
        tally.add(Mark.of(row))
        self.calls_in_rows += row.calls - (0 if before is None else before.calls)
        self.gauges[row.target].add(row)
        for name, grader in row.graders.items():
            self.graders.setdefault(name, GraderGauge()).add(grader)
        if row.error is not None:
            self._errors.append(f"{row.case_id} · {row.target}: {row.error.error}")

    def new_errors(self) -> Iterator[str]:
        """The errors since this was last asked; of a flood the latest ones."""
        while self._errors:
            yield self._errors.popleft()

    @property
    def trials(self) -> int:
        """How many rows there will be."""
        return sum(tally.trials for tally in self.tallies.values())

    @property
    def done(self) -> int:
        """How many rows there are."""
        return sum(tally.done for tally in self.tallies.values())


def _resumed(tallies: Sequence[Tally], again: Again) -> str | None:
    """What becomes of the rows of before, in words; None where there are none."""
    graded = sum(tally.graded for tally in tallies)
    errors = sum(tally.errors for tally in tallies)
    in_doubt = sum(tally.in_doubt for tally in tallies)
    words = [f"{graded} kept from before"] if graded else []
    if errors:
        words.append(f"{errors} errors {'asked again' if again.errors else 'kept'}")
    if in_doubt:
        words.append(f"{in_doubt} in doubt {'asked again' if again.in_doubt else 'kept'}")
    return ", ".join(words) or None
