"""The lifecycle of a call as a table of transitions. Every rule on who is charged for what is here. No I/O.

An operation looks up `TRANSITIONS` for a state and an event, and applies the result only if the call is still in that
state. ``used`` is added to the counter of the session and of all its ancestors, never beyond a limit.

Cancellation is not a state: it is a mark that stays on the call in every state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: How many attempts a call has at most that count: one that dies with its worker is followed by another.
MAX_ATTEMPTS: Final = 3

#: How many attempts of a call do not count at most because they died with a worker that ran other calls too: any of
#: these may have ended it.
MAX_UNCOUNTED_ATTEMPTS: Final = 4


class CallState(StrEnum):
    """The state of a call. ``none`` is a call without a row in the ledger."""

    NONE = "none"
    RESERVED = "reserved"
    RUNNING = "running"
    RELEASED = "released"
    REFUNDED = "refunded"
    COMMITTED = "committed"
    IN_DOUBT = "inDoubt"


#: The states that count against ``max_calls``.
COUNTED_STATES: Final = (CallState.RESERVED, CallState.RUNNING, CallState.COMMITTED, CallState.IN_DOUBT)


class LifecycleEvent(StrEnum):
    """What happens to a call, from the ledger's point of view."""

    RESERVED = "reserved"
    #: An attempt requests a call that no attempt holds.
    ADMITTED = "admitted"
    #: The attempt that holds the call requests it again: its grant was lost on the way.
    ADMITTED_AGAIN = "admitted again"
    #: Another attempt requests the call while its holder's lease is valid.
    JOINED = "joined"
    #: Another attempt requests the call, the holder's lease has lapsed, and more attempts are allowed.
    TAKEN_OVER = "taken over"
    #: The holder's lease has lapsed, and no attempt may follow: attempts used up, deadline passed, dead-lettered, or
    #: the session closed. Or the deadline passed long ago, so that the settle is lost.
    LOST = "lost"
    RELEASED = "released"
    #: A reservation ends whose call waited for its next try, and an attempt of it may have been billed.
    RELEASED_UNPROVEN = "released, an attempt unproven"
    #: The current attempt and all others are proven unbilled.
    REFUNDED = "refunded"
    #: The current attempt is proven unbilled, another one is not.
    REFUNDED_UNPROVEN = "refunded, another attempt unproven"
    #: An attempt that no longer holds the call reports anything but a result.
    STALE = "stale"
    ANSWERED = "answered"
    #: The provider processed the request and failed, or refused it: a charged fault is the call's answer.
    CHARGED = "charged"
    #: The request may have reached the provider, and its outcome is unknown.
    DOUBTED = "doubted"
    #: A try failed, and the call waits for its next one: it stays counted.
    RETRIED = "retried"
    #: The caller cancels the call: it is marked, and no attempt starts from then on.
    CANCELLED = "cancelled"
    #: The caller cancels a call that is marked already, or that another delivery waits for.
    CANCELLED_IN_VAIN = "cancelled in vain"
    #: The same for a call that waits for its next try, and an attempt of it may have been billed.
    CANCELLED_UNPROVEN = "cancelled, an attempt unproven"
    #: An attempt requests a cancelled call that no attempt holds.
    ADMITTED_TOO_LATE = "admitted after it was cancelled"


class TransitionEffect(StrEnum):
    """What the requester is answered."""

    #: The attempt may run; for an event that is not an admit, it is done.
    GRANTED = "granted"
    #: There is no answer until the state changes.
    HELD = "held"
    #: The stored answer or fault is returned; a new try needs a new request id.
    REPLAYED = "replayed"
    #: The event is noted, and nothing changes.
    NOTED = "noted"
    #: The attempt may not run, because its caller has cancelled the call.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state of a call, what is added to ``used`` and to its attempts, and the answer to the requester."""

    to: CallState
    used: int = 0
    attempts: int = 0
    effect: TransitionEffect = TransitionEffect.GRANTED


def _table() -> dict[tuple[CallState, LifecycleEvent], Transition]:
    none, reserved, running, released, refunded, committed, in_doubt = CallState
    table = {
        (none, LifecycleEvent.RESERVED): Transition(reserved, used=+1),
        # A caller renews its reservations, and after a restart reserves those again that ended meanwhile.
        (reserved, LifecycleEvent.RESERVED): Transition(reserved),
        (released, LifecycleEvent.RESERVED): Transition(reserved, used=+1),
        (reserved, LifecycleEvent.ADMITTED): Transition(running, attempts=1),
        (reserved, LifecycleEvent.RELEASED): Transition(released, used=-1),
        (reserved, LifecycleEvent.RELEASED_UNPROVEN): Transition(in_doubt),
        (running, LifecycleEvent.ADMITTED_AGAIN): Transition(running),
        (running, LifecycleEvent.JOINED): Transition(running, effect=TransitionEffect.HELD),
        (running, LifecycleEvent.TAKEN_OVER): Transition(running, attempts=1),
        (running, LifecycleEvent.LOST): Transition(in_doubt),
        (running, LifecycleEvent.REFUNDED): Transition(refunded, used=-1),
        (running, LifecycleEvent.REFUNDED_UNPROVEN): Transition(in_doubt),
        (running, LifecycleEvent.DOUBTED): Transition(in_doubt),
        (running, LifecycleEvent.RETRIED): Transition(reserved),
        (running, LifecycleEvent.ANSWERED): Transition(committed),
        (in_doubt, LifecycleEvent.ANSWERED): Transition(committed),
        (running, LifecycleEvent.CHARGED): Transition(committed),
    }
    for state in (none, released, refunded):
        table[state, LifecycleEvent.ADMITTED] = Transition(running, used=+1, attempts=1)
    for state in (committed, in_doubt):
        table[state, LifecycleEvent.ADMITTED] = Transition(state, effect=TransitionEffect.REPLAYED)
    for state in (none, released):
        table[state, LifecycleEvent.CANCELLED] = Transition(released)
    table[reserved, LifecycleEvent.CANCELLED] = Transition(released, used=-1)
    table[reserved, LifecycleEvent.CANCELLED_UNPROVEN] = Transition(in_doubt)
    table[refunded, LifecycleEvent.CANCELLED] = Transition(refunded)
    # Its worker is told to abort it; the outcome that the worker settles decides.
    table[running, LifecycleEvent.CANCELLED] = Transition(running)
    for state in (released, refunded):
        table[state, LifecycleEvent.ADMITTED_TOO_LATE] = Transition(state, effect=TransitionEffect.REFUSED)
    for state in (committed, in_doubt):
        table[state, LifecycleEvent.ADMITTED_TOO_LATE] = Transition(state, effect=TransitionEffect.REPLAYED)
    for state in CallState:
        table[state, LifecycleEvent.STALE] = Transition(state, effect=TransitionEffect.NOTED)
    return {
        (state, event): table.get((state, event)) or Transition(state, effect=TransitionEffect.NOTED)
        for state in CallState
        for event in LifecycleEvent
    }


#: What an event does to a call in a state; one that is not in the table above changes nothing.
TRANSITIONS: Final = _table()


def admit_event(
    state: CallState,
    *,
    current: bool,
    attempts_left: bool,
    holder_alive: bool,
    past_deadline: bool,
    cancelled: bool,
) -> LifecycleEvent:
    """Return the event of an admit.

    ``current``: the requester is the attempt that holds the call. ``holder_alive``: the holder's lease is valid. No
    attempt takes over a call whose deadline has passed (``past_deadline``), that is cancelled, or that has no
    ``attempts_left``.
    """
    if state is not CallState.RUNNING:
        return LifecycleEvent.ADMITTED_TOO_LATE if cancelled else LifecycleEvent.ADMITTED
    if current:
        return LifecycleEvent.ADMITTED_AGAIN
    if holder_alive:
        return LifecycleEvent.JOINED
    return LifecycleEvent.LOST if past_deadline or cancelled or not attempts_left else LifecycleEvent.TAKEN_OVER


def refund_event(*, current: bool, others_unproven: bool) -> LifecycleEvent:
    """Return the event of a refund, by the attempt that holds the call (``current``) or by another one.

    ``others_unproven``: another attempt of the call may have been billed.
    """
    if not current:
        return LifecycleEvent.STALE
    return LifecycleEvent.REFUNDED_UNPROVEN if others_unproven else LifecycleEvent.REFUNDED


def release_event(*, unproven: bool) -> LifecycleEvent:
    """Return the event of the end of a reservation. ``unproven``: an attempt of its call may have been billed."""
    return LifecycleEvent.RELEASED_UNPROVEN if unproven else LifecycleEvent.RELEASED


def cancel_event(*, cancelled: bool, joined: bool, unproven: bool = False) -> LifecycleEvent:
    """Return the event of a cancellation. ``joined``: another delivery waits for the call's answer.

    ``unproven``: no attempt runs the call, and a try of it may have been billed.
    """
    if cancelled or joined:
        return LifecycleEvent.CANCELLED_IN_VAIN
    return LifecycleEvent.CANCELLED_UNPROVEN if unproven else LifecycleEvent.CANCELLED
