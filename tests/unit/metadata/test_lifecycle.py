"""The table of a call's life, held against the design's rows and its invariants."""

from __future__ import annotations

import itertools

import pytest

from quintain_metadata.lifecycle import (
    COUNTED,
    MOST_ATTEMPTS,
    TRANSITIONS,
    Effect,
    Event,
    State,
    Transition,
    admit_event,
    cancel_event,
    refund_event,
    transition,
)

#: design.md §3, row by row: from, event, to, used.
DESIGN = [
    (State.NONE, Event.RESERVED, State.RESERVED, +1),
    (State.NONE, Event.ADMITTED, State.RUNNING, +1),
    (State.RELEASED, Event.ADMITTED, State.RUNNING, +1),
    (State.REFUNDED, Event.ADMITTED, State.RUNNING, +1),
    (State.RESERVED, Event.ADMITTED, State.RUNNING, 0),
    (State.RESERVED, Event.RELEASED, State.RELEASED, -1),
    (State.RUNNING, Event.ADMITTED_AGAIN, State.RUNNING, 0),
    (State.RUNNING, Event.JOINED, State.RUNNING, 0),
    (State.RUNNING, Event.TAKEN_OVER, State.RUNNING, 0),
    (State.RUNNING, Event.LOST, State.IN_DOUBT, 0),
    (State.RUNNING, Event.REFUNDED, State.REFUNDED, -1),
    (State.RUNNING, Event.REFUNDED_UNPROVEN, State.IN_DOUBT, 0),
    (State.RUNNING, Event.ANSWERED, State.COMMITTED, 0),
    (State.IN_DOUBT, Event.ANSWERED, State.COMMITTED, 0),
    (State.RUNNING, Event.CHARGED, State.COMMITTED, 0),
    (State.COMMITTED, Event.ADMITTED, State.COMMITTED, 0),
    (State.IN_DOUBT, Event.ADMITTED, State.IN_DOUBT, 0),
    (State.NONE, Event.CANCELLED, State.RELEASED, 0),
    (State.RESERVED, Event.CANCELLED, State.RELEASED, -1),
    (State.RELEASED, Event.CANCELLED, State.RELEASED, 0),
    (State.REFUNDED, Event.CANCELLED, State.REFUNDED, 0),
    (State.RUNNING, Event.CANCELLED, State.RUNNING, 0),
    (State.RELEASED, Event.ADMITTED_TOO_LATE, State.RELEASED, 0),
    (State.REFUNDED, Event.ADMITTED_TOO_LATE, State.REFUNDED, 0),
    (State.COMMITTED, Event.ADMITTED_TOO_LATE, State.COMMITTED, 0),
    (State.IN_DOUBT, Event.ADMITTED_TOO_LATE, State.IN_DOUBT, 0),
]


@pytest.mark.parametrize(("state", "event", "to", "used"), DESIGN)
def test_the_table_is_the_designs(state: State, event: Event, to: State, used: int) -> None:
    change = transition(state, event)
    assert (change.to, change.used) == (to, used)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_used_changes_exactly_when_a_call_begins_or_ceases_to_count(state: State, event: Event) -> None:
    change = transition(state, event)
    assert change.used == (change.to in COUNTED) - (state in COUNTED)


@pytest.mark.parametrize("event", list(Event))
def test_what_is_committed_stays_committed(event: Event) -> None:
    assert transition(State.COMMITTED, event).to is State.COMMITTED


@pytest.mark.parametrize("event", [Event.REFUNDED, Event.RELEASED, Event.STALE, Event.LOST])
def test_what_is_in_doubt_is_never_given_back(event: Event) -> None:
    assert transition(State.IN_DOUBT, event) == Transition(State.IN_DOUBT, effect=Effect.NOTED)


@pytest.mark.parametrize("state", list(State))
def test_a_stale_attempts_report_changes_nothing_but_a_result_does(state: State) -> None:
    assert transition(state, Event.STALE) == Transition(state, effect=Effect.NOTED)


def test_only_granting_adds_an_attempt() -> None:
    adding = {event for (_, event), change in TRANSITIONS.items() if change.attempts}
    assert adding == {Event.ADMITTED, Event.TAKEN_OVER}


@pytest.mark.parametrize(
    ("state", "attempts", "current", "alive", "late", "cancelled", "event"),
    [
        (State.NONE, 0, False, False, False, False, Event.ADMITTED),
        (State.RUNNING, 1, True, True, False, False, Event.ADMITTED_AGAIN),
        (State.RUNNING, 1, True, False, True, False, Event.ADMITTED_AGAIN),
        (State.RUNNING, 1, False, True, False, False, Event.JOINED),
        (State.RUNNING, 1, False, True, True, False, Event.JOINED),
        (State.RUNNING, 1, False, False, False, False, Event.TAKEN_OVER),
        (State.RUNNING, MOST_ATTEMPTS - 1, False, False, False, False, Event.TAKEN_OVER),
        (State.RUNNING, MOST_ATTEMPTS, False, False, False, False, Event.LOST),
        (State.RUNNING, 1, False, False, True, False, Event.LOST),
        (State.COMMITTED, 1, False, False, True, False, Event.ADMITTED),
        (State.RELEASED, 0, False, False, False, True, Event.ADMITTED_TOO_LATE),
        (State.REFUNDED, 1, False, False, False, True, Event.ADMITTED_TOO_LATE),
        (State.IN_DOUBT, 1, True, True, False, True, Event.ADMITTED_TOO_LATE),
        (State.RUNNING, 1, True, True, False, True, Event.ADMITTED_AGAIN),
        (State.RUNNING, 1, False, True, False, True, Event.JOINED),
        (State.RUNNING, 1, False, False, False, True, Event.LOST),
    ],
)
def test_an_admit_is_the_event_its_situation_makes_it(
    state: State, attempts: int, current: bool, alive: bool, late: bool, cancelled: bool, event: Event
) -> None:
    situation = {"current": current, "holder_alive": alive, "late": late, "cancelled": cancelled}
    assert admit_event(state, attempts, **situation) is event


@pytest.mark.parametrize("state", [State.COMMITTED, State.IN_DOUBT])
def test_a_call_that_has_ended_cannot_be_cancelled_and_tells_its_end(state: State) -> None:
    assert transition(state, Event.CANCELLED) == Transition(state, effect=Effect.NOTED)
    assert transition(state, Event.ADMITTED_TOO_LATE).effect is Effect.REPLAYED


@pytest.mark.parametrize("state", list(State))
def test_no_attempt_begins_once_a_call_was_cancelled(state: State) -> None:
    event = admit_event(state, 1, current=False, holder_alive=False, late=False, cancelled=True)
    assert transition(state, event).attempts == 0


@pytest.mark.parametrize("state", list(State))
def test_a_cancel_in_vain_changes_nothing(state: State) -> None:
    assert transition(state, Event.CANCELLED_IN_VAIN) == Transition(state, effect=Effect.NOTED)


def test_a_cancel_is_in_vain_where_others_wait_or_it_was_done_before() -> None:
    assert cancel_event(cancelled=False, joined=False) is Event.CANCELLED
    assert cancel_event(cancelled=True, joined=False) is Event.CANCELLED_IN_VAIN
    assert cancel_event(cancelled=False, joined=True) is Event.CANCELLED_IN_VAIN


def test_a_refund_needs_the_current_attempt_and_the_proof_of_all() -> None:
    assert refund_event(current=True, others_unproven=False) is Event.REFUNDED
    assert refund_event(current=True, others_unproven=True) is Event.REFUNDED_UNPROVEN
    assert refund_event(current=False, others_unproven=False) is Event.STALE
