"""The table of a call's life, held against the design's rows and its invariants."""

from __future__ import annotations

import itertools

import pytest

from quintain_metadata.ledger.lifecycle import (
    COUNTED_STATES,
    TRANSITIONS,
    CallState,
    LifecycleEvent,
    Transition,
    TransitionEffect,
    admit_event,
    cancel_event,
    refund_event,
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(CallState, LifecycleEvent)))
def test_used_changes_exactly_when_a_call_begins_or_ceases_to_count(state: CallState, event: LifecycleEvent) -> None:
    change = TRANSITIONS[state, event]
    assert change.used == (change.to in COUNTED_STATES) - (state in COUNTED_STATES)


@pytest.mark.parametrize(
    "event", [LifecycleEvent.REFUNDED, LifecycleEvent.RELEASED, LifecycleEvent.STALE, LifecycleEvent.LOST]
)
def test_what_is_in_doubt_is_never_given_back(event: LifecycleEvent) -> None:
    assert TRANSITIONS[CallState.IN_DOUBT, event] == Transition(CallState.IN_DOUBT, effect=TransitionEffect.NOTED)


@pytest.mark.parametrize("state", list(CallState))
def test_a_stale_attempts_report_changes_nothing_but_a_result_does(state: CallState) -> None:
    assert TRANSITIONS[state, LifecycleEvent.STALE] == Transition(state, effect=TransitionEffect.NOTED)


def test_only_granting_adds_an_attempt() -> None:
    adding = {event for (_, event), change in TRANSITIONS.items() if change.attempts}
    assert adding == {LifecycleEvent.ADMITTED, LifecycleEvent.TAKEN_OVER}


@pytest.mark.parametrize(
    ("state", "left", "current", "alive", "late", "cancelled", "event"),
    [
        (CallState.NONE, True, False, False, False, False, LifecycleEvent.ADMITTED),
        (CallState.RUNNING, True, True, True, False, False, LifecycleEvent.ADMITTED_AGAIN),
        (CallState.RUNNING, True, True, False, True, False, LifecycleEvent.ADMITTED_AGAIN),
        (CallState.RUNNING, True, False, True, False, False, LifecycleEvent.JOINED),
        (CallState.RUNNING, True, False, True, True, False, LifecycleEvent.JOINED),
        (CallState.RUNNING, True, False, False, False, False, LifecycleEvent.TAKEN_OVER),
        (CallState.RUNNING, False, False, False, False, False, LifecycleEvent.LOST),
        (CallState.RUNNING, True, False, False, True, False, LifecycleEvent.LOST),
        (CallState.COMMITTED, True, False, False, True, False, LifecycleEvent.ADMITTED),
        (CallState.RELEASED, True, False, False, False, True, LifecycleEvent.ADMITTED_TOO_LATE),
        (CallState.REFUNDED, True, False, False, False, True, LifecycleEvent.ADMITTED_TOO_LATE),
        (CallState.IN_DOUBT, True, True, True, False, True, LifecycleEvent.ADMITTED_TOO_LATE),
        (CallState.RUNNING, True, True, True, False, True, LifecycleEvent.ADMITTED_AGAIN),
        (CallState.RUNNING, True, False, True, False, True, LifecycleEvent.JOINED),
        (CallState.RUNNING, True, False, False, False, True, LifecycleEvent.LOST),
    ],
)
def test_an_admit_is_the_event_its_situation_makes_it(
    state: CallState, left: bool, current: bool, alive: bool, late: bool, cancelled: bool, event: LifecycleEvent
) -> None:
    situation = {
        "current": current,
        "attempts_left": left,
        "holder_alive": alive,
        "past_deadline": late,
        "cancelled": cancelled,
    }
    assert admit_event(state, **situation) is event


@pytest.mark.parametrize("state", [CallState.COMMITTED, CallState.IN_DOUBT])
def test_a_call_that_has_ended_cannot_be_cancelled_and_tells_its_end(state: CallState) -> None:
    assert TRANSITIONS[state, LifecycleEvent.CANCELLED] == Transition(state, effect=TransitionEffect.NOTED)
    assert TRANSITIONS[state, LifecycleEvent.ADMITTED_TOO_LATE].effect is TransitionEffect.REPLAYED


@pytest.mark.parametrize("state", list(CallState))
def test_no_attempt_begins_once_a_call_was_cancelled(state: CallState) -> None:
    event = admit_event(
        state, current=False, attempts_left=True, holder_alive=False, past_deadline=False, cancelled=True
    )
    assert TRANSITIONS[state, event].attempts == 0


def test_a_cancel_is_in_vain_where_others_wait_or_it_was_done_before() -> None:
    assert cancel_event(cancelled=False, joined=False) is LifecycleEvent.CANCELLED
    assert cancel_event(cancelled=True, joined=False) is LifecycleEvent.CANCELLED_IN_VAIN
    assert cancel_event(cancelled=False, joined=True) is LifecycleEvent.CANCELLED_IN_VAIN


def test_a_refund_needs_the_current_attempt_and_the_proof_of_all() -> None:
    assert refund_event(current=True, others_unproven=False) is LifecycleEvent.REFUNDED
    assert refund_event(current=True, others_unproven=True) is LifecycleEvent.REFUNDED_UNPROVEN
    assert refund_event(current=False, others_unproven=False) is LifecycleEvent.STALE
