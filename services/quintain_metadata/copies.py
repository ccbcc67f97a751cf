"""Which copies of messages wait because a worker still waits with their call, or is about to ask for it again.

A worker copies the message of a call that it holds for long (`quintain_worker.inflight`). Whoever gets the copy asks
with the attempt that it is a copy of. While that runs, the ledger lets the copy wait; while it waits for its admission,
only this service knows that. A worker whose attempt has ended may ask for the next one a moment later.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from quintain.contracts.ledger import Admission, Admit, AttemptEnded
from quintain.contracts.quota import TryOutcome
from quintain_metadata.ledger.call_rows import CallKey
from quintain_metadata.ledger.decisions import DeferReason, Deferred
from quintain_metadata.waiting import WaitingAdmits


@dataclass(slots=True)
class _EndedAttempts:
    """The attempts of a call that ended, and until when its worker may ask for another one."""

    attempt_ids: set[str] = field(default_factory=set)
    until: float = 0.0


class CopiesOfWaiting:
    """Decides about copies of messages whose calls wait. Times are the loop's, in seconds.

    A worker asks again within ``held_admit_seconds``, or counts as gone.
    """

    def __init__(self, waiting: WaitingAdmits, held_admit_seconds: float) -> None:
        self._waiting, self._held_admit_seconds = waiting, held_admit_seconds
        self._ended: dict[CallKey, _EndedAttempts] = {}

    def note_ended(self, now: float, ended: AttemptEnded) -> None:
        """Take note of how an attempt ended."""
        key = ended.session_id, ended.request_id
        if ended.gave_up:
            self._ended.pop(key, None)
        elif ended.was_holder and ended.report.outcome in {TryOutcome.THROTTLED, TryOutcome.FAILED}:
            of_call = self._ended.setdefault(key, _EndedAttempts())
            copies = (waiting.admit.copy_of for waiting in self._waiting.of_calls([key]))
            of_call.attempt_ids.update(filter(None, (ended.attempt_id, *copies)))
            of_call.until = now + self._held_admit_seconds

    def forget_ended(self, now: float) -> None:
        """Forget the calls for which no worker has asked again."""
        for key in [key for key, ended in self._ended.items() if ended.until < now and not self._is_asked_for(key)]:
            del self._ended[key]

    def decide(self, now: float, copy: Admit, needs_slot: Admission) -> Admission | Deferred | None:
        """Return the decision on a copy whose call the ledger does not know as running.

        None where it is decided later: it waits on, or its worker repeats the admit.
        """
        key = copy.credential().id, copy.request_id
        original, ended = self._waiting.get(copy.copy_of or ""), self._ended.get(key)
        if original is not None and original.call_key == key:
            return dataclasses.replace(original.deferred, reason=DeferReason.CALL, is_takeover=False, payer=None)
        if ended is None or copy.copy_of not in ended.attempt_ids:
            return needs_slot
        return None if now < ended.until or self._is_asked_for(key) else needs_slot

    def _is_asked_for(self, key: CallKey) -> bool:
        """Whether a worker waits for an attempt at this call."""
        return any(waiting.admit.copy_of is None for waiting in self._waiting.of_calls([key]))
