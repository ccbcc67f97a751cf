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
    ("state", "attempts", "holder", "alive", "late", "event"),
    [
        (State.NONE, 0, None, False, False, Event.ADMITTED),
        (State.RUNNING, 1, "me", True, False, Event.ADMITTED_AGAIN),
        (State.RUNNING, 1, "me", False, True, Event.ADMITTED_AGAIN),
        (State.RUNNING, 1, "other", True, False, Event.JOINED),
        (State.RUNNING, 1, "other", True, True, Event.JOINED),
        (State.RUNNING, 1, "other", False, False, Event.TAKEN_OVER),
        (State.RUNNING, MOST_ATTEMPTS - 1, "other", False, False, Event.TAKEN_OVER),
        (State.RUNNING, MOST_ATTEMPTS, "other", False, False, Event.LOST),
        (State.RUNNING, 1, "other", False, True, Event.LOST),
        (State.COMMITTED, 1, "other", False, True, Event.ADMITTED),
    ],
)
def test_an_admit_is_the_event_its_situation_makes_it(
    state: State, attempts: int, holder: str | None, alive: bool, late: bool, event: Event
) -> None:
    assert admit_event(state, attempts, holder=holder, attempt_id="me", holder_alive=alive, late=late) is event


def test_a_refund_needs_the_current_attempt_and_the_proof_of_all() -> None:
    assert refund_event(current=True, others_unproven=False) is Event.REFUNDED
    assert refund_event(current=True, others_unproven=True) is Event.REFUNDED_UNPROVEN
    assert refund_event(current=False, others_unproven=False) is Event.STALE
