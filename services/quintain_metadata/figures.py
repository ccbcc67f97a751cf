"""What the books say in a few numbers: cheap enough to be read every few seconds, however long the books are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quintain.contracts.discovery import RegisteredTarget
from quintain.contracts.metadata import SessionState
from quintain_metadata import targets
from quintain_metadata.lifecycle import State
from quintain_metadata.records import Moment
from quintain_metadata.steps import Steps, one, run

#: A session with so many hundredths of its limit charged is nearly spent.
NEARLY_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Figures:
    """The ledger at one moment: sessions by state, and of the open ones the calls in doubt and those nearly spent."""

    sessions: Mapping[str, int] = field(default_factory=dict)
    in_doubt: int = 0
    nearly_spent: int = 0
    targets: tuple[RegisteredTarget, ...] = ()


def figures(moment: Moment) -> Steps[Figures]:
    """Read them. Calls are counted by their session's index, never one by one over all sessions there ever were."""
    by_state = yield from run("SELECT state, count(*) FROM session GROUP BY state")
    doubt = yield from one(
        "SELECT count(*) FROM session JOIN call ON call.session_id = session.id AND call.state = ?"
        " WHERE session.state = ?",
        *(State.IN_DOUBT, SessionState.OPEN),
    )
    nearly = yield from one(
        "SELECT count(*) FROM session WHERE state = ? AND max_calls > 0 AND used * 100 >= max_calls * ?",
        *(SessionState.OPEN, NEARLY_PERCENT),
    )
    registered = yield from targets.registered(moment.now)
    assert doubt is not None
    assert nearly is not None
    return Figures({row[0]: row[1] for row in by_state}, doubt[0], nearly[0], tuple(registered.targets))
