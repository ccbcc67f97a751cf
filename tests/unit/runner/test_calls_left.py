"""The forecast of the calls that open trials still need: what each of them needs, by what graders took so far."""

from __future__ import annotations

from quintain_runner.results.counts import CallsLeft, GraderCallSamples, NeededCalls
from support.results_folder import errored_row, graded_row

ASKED = NeededCalls(asks=True, graders=("same",))
GRADED = NeededCalls(graders=("same",))


def calls_made(*calls: int, target: str = "bot") -> GraderCallSamples:
    """The grader of as many rows made so many calls each."""
    made = GraderCallSamples()
    for number, count in enumerate(calls):
        row = graded_row(str(number), 1.0, target=target)
        made.add_row(
            row.model_copy(update={"graders": {"same": row.graders["same"].model_copy(update={"calls": count})}})
        )
    return made


def calls_left(count: int, needed: NeededCalls = ASKED, *, column: str = "bot") -> CallsLeft:
    """So many trials need this; a grader makes 50 calls at most."""
    left = CallsLeft({"same": 50})
    for _ in range(count):
        left.add(column, needed)
    return left


def test_the_estimate_is_of_what_the_graders_took() -> None:
    assert calls_left(7).estimate(calls_made(1, 1, 1)) == 14
    assert calls_left(7, column="other").estimate(calls_made(1, 1, 1)) == 14
    assert calls_left(0).estimate(calls_made(5, 5)) == 0


def test_a_kept_answer_is_graded_without_a_call_of_its_target() -> None:
    assert calls_left(7, GRADED).estimate(calls_made(1, 1, 1)) == 7
    assert (calls_left(7, GRADED).most, calls_left(7).most) == (350, 357)


def test_what_failed_is_no_measure() -> None:
    made = calls_made(2)
    made.add_row(errored_row("failed"))
    assert calls_left(4).estimate(made) == 4 * 3


def test_what_is_taken_back_is_no_measure() -> None:
    made = calls_made(2)
    row = graded_row("1", 1.0)
    made.add_row(row)
    made.add_row(row, times=-1)
    assert calls_left(4).estimate(made) == 4 * 3


def test_an_estimate_with_its_margin_is_not_above_the_most() -> None:
    assert calls_left(1).estimate(calls_made(0, 50)) == calls_left(1).most == 51


def test_before_anything_is_graded_it_is_the_most() -> None:
    assert calls_left(10).estimate(GraderCallSamples()) == calls_left(10).most == 510


def test_where_executions_differ_there_is_room_for_it() -> None:
    assert 500 < calls_left(100).estimate(calls_made(0, 8, 0, 8)) < 700


def test_what_a_trial_needed_is_taken_out() -> None:
    left = calls_left(3)
    copied = left.copy()
    left.add("bot", ASKED, times=-1)
    assert (left.estimate(calls_made(1)), copied.estimate(calls_made(1))) == (4, 6)
