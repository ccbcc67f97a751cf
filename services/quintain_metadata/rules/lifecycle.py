"""The lifecycle of a call as a table of transitions. Every rule on who is charged for what is here. No I/O.

The table implements ``design.md`` §3, and §4.8 for cancellation. A store looks up `transition` for an event and a
state, and applies the result only if the call is still in that state. ``used`` is added to the counter of the
session and of all its ancestors; a charge that exceeds a limit rolls back the whole operation.

Cancellation is not a state: it is a mark that stays on the call in every state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: An attempt that dies with its worker is followed by another, until this many were made.
MAX_ATTEMPTS: Final = 3

#: So many duplicates of one running call are held; one more is `overloaded`.
MAX_HELD_DUPLICATES: Final = 4

#: Deadlines are at most this far ahead: below the broker's consumer timeout of 30 minutes.
MAX_DEADLINE_AHEAD_MS: Final = 25 * 60_000


class CallState(StrEnum):
    """Where a call stands. ``none`` is a call nobody has heard of."""

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
    """What happens to a call, as the ledger sees it."""

    RESERVED = "reserved"
    #: An attempt asks to run a call that no attempt holds.
    ADMITTED = "admitted"
    #: The attempt that holds the call asks again: its grant was lost on the way.
    ADMITTED_AGAIN = "admitted again"
    #: Another attempt asks, while the holder lives.
    JOINED = "joined"
    #: Another attempt asks, the holder's lease has lapsed, and more attempts are allowed.
    TAKEN_OVER = "taken over"
    #: The holder's lease has lapsed, and nobody may follow: the last attempt, the deadline, a dead letter.
    LOST = "lost"
    RELEASED = "released"
    #: The current attempt, and every other, is proven unbilled.
    REFUNDED = "refunded"
    #: The current attempt is proven unbilled, another one is not.
    REFUNDED_UNPROVEN = "refunded, another attempt unproven"
    #: An attempt that no longer holds the call reports anything but a result.
    STALE = "stale"
    ANSWERED = "answered"
    #: The provider worked and failed, or refused: a charged fault is the call's answer.
    CHARGED = "charged"
    #: It may have reached the provider, and nobody knows what came of it.
    DOUBTED = "doubted"
    #: Its caller takes the call back: it is marked, and no attempt begins from then on.
    CANCELLED = "cancelled"
    #: Its caller takes back a call that is marked already, or that another delivery waits for too.
    CANCELLED_IN_VAIN = "cancelled in vain"
    #: An attempt asks to run a call that no attempt holds and that is marked.
    ADMITTED_TOO_LATE = "admitted after it was cancelled"


class TransitionEffect(StrEnum):
    """What the one who asked is told."""

    #: The attempt may run; or, for what is not an admit, it is done.
    GRANTED = "granted"
    #: No answer until the state changes.
    HELD = "held"
    #: The stored answer or fault; another try is a new request id.
    REPLAYED = "replayed"
    #: Noted, and nothing changes.
    NOTED = "noted"
    #: The attempt may not run: its caller has cancelled the call.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Transition:
    """Where a call goes, what that adds to ``used``, how many attempts it adds, and what is told."""

    to: CallState
    used: int = 0
    attempts: int = 0
    effect: TransitionEffect = TransitionEffect.GRANTED


def _table() -> dict[tuple[CallState, LifecycleEvent], Transition]:
    none, reserved, running, released, refunded, committed, in_doubt = CallState
    table = {
        (none, LifecycleEvent.RESERVED): Transition(reserved, used=+1),
        (reserved, LifecycleEvent.ADMITTED): Transition(running, attempts=1),
        (reserved, LifecycleEvent.RELEASED): Transition(released, used=-1),
        (running, LifecycleEvent.ADMITTED_AGAIN): Transition(running),
        (running, LifecycleEvent.JOINED): Transition(running, effect=TransitionEffect.HELD),
        (running, LifecycleEvent.TAKEN_OVER): Transition(running, attempts=1),
        (running, LifecycleEvent.LOST): Transition(in_doubt),
        (running, LifecycleEvent.REFUNDED): Transition(refunded, used=-1),
        (running, LifecycleEvent.REFUNDED_UNPROVEN): Transition(in_doubt),
        (running, LifecycleEvent.DOUBTED): Transition(in_doubt),
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
    table[refunded, LifecycleEvent.CANCELLED] = Transition(refunded)
    # Its worker is told to abort it, and what it settles decides.
    table[running, LifecycleEvent.CANCELLED] = Transition(running)
    for state in (released, refunded):
        table[state, LifecycleEvent.ADMITTED_TOO_LATE] = Transition(state, effect=TransitionEffect.REFUSED)
    for state in (committed, in_doubt):
        table[state, LifecycleEvent.ADMITTED_TOO_LATE] = Transition(state, effect=TransitionEffect.REPLAYED)
    for state in CallState:
        table[state, LifecycleEvent.STALE] = Transition(state, effect=TransitionEffect.NOTED)
    return table


TRANSITIONS: Final = _table()


def transition(state: CallState, event: LifecycleEvent) -> Transition:
    """What the event does to a call in this state; an event the table does not name there changes nothing."""
    return TRANSITIONS.get((state, event), Transition(state, effect=TransitionEffect.NOTED))


def admit_event(
    state: CallState,
    attempts: int,
    *,
    current: bool,
    holder_alive: bool,
    past_deadline: bool,
    cancelled: bool,
) -> LifecycleEvent:
    """Which event an admit is: by the attempt that holds the call (``current``), or by another one. Nobody takes over a
    call whose deadline has passed (``past_deadline``), or that its caller has cancelled."""
    if state is not CallState.RUNNING:
        return LifecycleEvent.ADMITTED_TOO_LATE if cancelled else LifecycleEvent.ADMITTED
    if current:
        return LifecycleEvent.ADMITTED_AGAIN
    if holder_alive:
        return LifecycleEvent.JOINED
    return LifecycleEvent.LOST if past_deadline or cancelled or attempts >= MAX_ATTEMPTS else LifecycleEvent.TAKEN_OVER


def refund_event(*, current: bool, others_unproven: bool) -> LifecycleEvent:
    """Which event a refund is: by the attempt that holds the call, and with every attempt proven or not."""
    if not current:
        return LifecycleEvent.STALE
    return LifecycleEvent.REFUNDED_UNPROVEN if others_unproven else LifecycleEvent.REFUNDED


def cancel_event(*, cancelled: bool, joined: bool) -> LifecycleEvent:
    """Which event a cancel is. ``joined``: another delivery waits for this call and wants its answer."""
    return LifecycleEvent.CANCELLED_IN_VAIN if cancelled or joined else LifecycleEvent.CANCELLED
