"""A call's life as a table: every rule on who is charged for what must live here, and nothing here does I/O.

The table is ``design.md`` §3, and §4.8 for what is cancelled. A store asks `transition` what an event does to a call
in a state, and applies the answer on the condition that the state is still the one it asked about. ``used`` is what the
transition adds to the counter of the session and of all its ancestors; a charge that finds no room undoes the whole
transition.

That its caller has cancelled a call is no state: it is a mark on the call, for ever, whatever its state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: An attempt that dies with its worker is followed by another, until this many were made.
MOST_ATTEMPTS: Final = 3

#: So many duplicates of one running call are held; one more is `overloaded`.
MOST_HELD: Final = 4

#: Deadlines are at most this far ahead: below the broker's consumer timeout of 30 minutes.
MOST_AHEAD_MS: Final = 25 * 60_000


class State(StrEnum):
    """Where a call stands. ``none`` is a call nobody has heard of."""

    NONE = "none"
    RESERVED = "reserved"
    RUNNING = "running"
    RELEASED = "released"
    REFUNDED = "refunded"
    COMMITTED = "committed"
    IN_DOUBT = "inDoubt"


#: The states that count against ``max_calls``.
COUNTED: Final = (State.RESERVED, State.RUNNING, State.COMMITTED, State.IN_DOUBT)


class Event(StrEnum):
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


class Effect(StrEnum):
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

    to: State
    used: int = 0
    attempts: int = 0
    effect: Effect = Effect.GRANTED


def _table() -> dict[tuple[State, Event], Transition]:
    none, reserved, running, released, refunded, committed, in_doubt = State
    table = {
        (none, Event.RESERVED): Transition(reserved, used=+1),
        (reserved, Event.ADMITTED): Transition(running, attempts=1),
        (reserved, Event.RELEASED): Transition(released, used=-1),
        (running, Event.ADMITTED_AGAIN): Transition(running),
        (running, Event.JOINED): Transition(running, effect=Effect.HELD),
        (running, Event.TAKEN_OVER): Transition(running, attempts=1),
        (running, Event.LOST): Transition(in_doubt),
        (running, Event.REFUNDED): Transition(refunded, used=-1),
        (running, Event.REFUNDED_UNPROVEN): Transition(in_doubt),
        (running, Event.DOUBTED): Transition(in_doubt),
        (running, Event.ANSWERED): Transition(committed),
        (in_doubt, Event.ANSWERED): Transition(committed),
        (running, Event.CHARGED): Transition(committed),
    }
    for state in (none, released, refunded):
        table[state, Event.ADMITTED] = Transition(running, used=+1, attempts=1)
    for state in (committed, in_doubt):
        table[state, Event.ADMITTED] = Transition(state, effect=Effect.REPLAYED)
    for state in (none, released):
        table[state, Event.CANCELLED] = Transition(released)
    table[reserved, Event.CANCELLED] = Transition(released, used=-1)
    table[refunded, Event.CANCELLED] = Transition(refunded)
    # Its worker is told to abort it, and what it settles decides.
    table[running, Event.CANCELLED] = Transition(running)
    for state in (released, refunded):
        table[state, Event.ADMITTED_TOO_LATE] = Transition(state, effect=Effect.REFUSED)
    for state in (committed, in_doubt):
        table[state, Event.ADMITTED_TOO_LATE] = Transition(state, effect=Effect.REPLAYED)
    for state in State:
        table[state, Event.STALE] = Transition(state, effect=Effect.NOTED)
    return table


TRANSITIONS: Final = _table()


def transition(state: State, event: Event) -> Transition:
    """What the event does to a call in this state; an event the table does not name there changes nothing."""
    return TRANSITIONS.get((state, event), Transition(state, effect=Effect.NOTED))


def admit_event(
    state: State,
    attempts: int,
    *,
    current: bool,
    holder_alive: bool,
    late: bool,
    cancelled: bool,
) -> Event:
    """Which event an admit is: by the attempt that holds the call (``current``), or by another one. Nobody takes over a
    call whose deadline has passed (``late``), or that its caller has cancelled."""
    if state is not State.RUNNING:
        return Event.ADMITTED_TOO_LATE if cancelled else Event.ADMITTED
    if current:
        return Event.ADMITTED_AGAIN
    if holder_alive:
        return Event.JOINED
    return Event.LOST if late or cancelled or attempts >= MOST_ATTEMPTS else Event.TAKEN_OVER


def refund_event(*, current: bool, others_unproven: bool) -> Event:
    """Which event a refund is: by the attempt that holds the call, and with every attempt proven or not."""
    if not current:
        return Event.STALE
    return Event.REFUNDED_UNPROVEN if others_unproven else Event.REFUNDED


def cancel_event(*, cancelled: bool, joined: bool) -> Event:
    """Which event a cancel is. ``joined``: another delivery waits for this call and wants its answer."""
    return Event.CANCELLED_IN_VAIN if cancelled or joined else Event.CANCELLED
