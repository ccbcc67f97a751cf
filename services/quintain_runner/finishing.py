"""What is left to spend: how many calls more the open trials of a run will take, by what the graded ones took. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from quintain_runner.tally import Tally

#: A sum of many scattered costs stays below its mean by so many standard deviations in 999 of 1000 runs.
_DEVIATIONS = 3.0


def calls_left(tallies: Collection[Tally], *, most_per_trial: int) -> int:
    """How many calls finish what waits and what erred, with room for how much the graded rows scatter.

    Only graded rows are measured: one that erred for want of budget cost less than it will. A target without any costs
    as much as the others, and where no row is graded each trial its utmost, ``most_per_trial``.
    """
    everything = Tally(0)
    for tally in tallies:
        everything += tally
    mean, variance = 0.0, 0.0
    for tally in tallies:
        left = tally.trials - tally.graded - tally.in_doubt
        measured = tally if tally.graded else everything
        if measured.graded:
            each = measured.graded_calls / measured.graded
            scatter = max(0.0, measured.graded_calls_squared / measured.graded - each**2)
        else:
            each, scatter = float(most_per_trial), 0.0
        mean += left * each
        variance += left * scatter
    # Rounded first: a mean of whole numbers is one, whatever its last binary digit.
    return math.ceil(round(mean + _DEVIATIONS * math.sqrt(variance), 6))
