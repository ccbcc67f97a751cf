"""Counts what becomes of calls between two events of the fleet: by target, in plain values."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from quintain.contracts.fleet import BUCKET_BASE, CallCounts
from quintain.contracts.ledger import Admission, Settle

_LOG_BASE = math.log(BUCKET_BASE)


def bucket_of(milliseconds: float) -> int:
    """Return the number of the histogram bucket of a duration; 0 for those of at most a millisecond."""
    return 0 if milliseconds <= 1 else math.ceil(math.log(milliseconds) / _LOG_BASE)


@dataclass(slots=True)
class _TargetCounts:
    started: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    service: Counter[int] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class CallCounter:
    """Counts admissions and settles by target until they are taken."""

    def __init__(self) -> None:
        self._targets: defaultdict[str, _TargetCounts] = defaultdict(_TargetCounts)

    def count_admission(self, target: str, admission: Admission) -> None:
        """Count a decision: a granted call, or the code of its refusal; others are neither."""
        if admission.fault is not None:
            self._targets[target].faults[admission.fault.code] += 1
        elif admission.is_grant:
            self._targets[target].started += 1

    def count_settle(self, target: str, item: Settle) -> None:
        """Count how an attempt ended, with the times, tokens and cost that its worker reported."""
        counts = self._targets[target]
        counts.outcomes[str(item.outcome)] += 1
        if item.fault is not None:
            counts.faults[item.fault.code] += 1
        timed = item if item.reply is None else item.reply
        if timed.queued_ms is not None and timed.duration_ms is not None:
            counts.wait[bucket_of(timed.queued_ms)] += 1
            counts.service[bucket_of(timed.duration_ms)] += 1
            counts.cost_usd += timed.cost_usd or 0.0
        if item.token_usage is not None:
            counts.input_tokens += item.token_usage.input
            counts.output_tokens += item.token_usage.output

    def take(self) -> dict[str, CallCounts]:
        """Return the counts since the last time, and begin again."""
        taken, self._targets = self._targets, defaultdict(_TargetCounts)
        return {
            target: CallCounts(
                started=counts.started,
                outcomes=dict(counts.outcomes),
                faults=dict(counts.faults),
                wait=dict(counts.wait),
                service=dict(counts.service),
                input_tokens=counts.input_tokens,
                output_tokens=counts.output_tokens,
                cost_usd=counts.cost_usd,
            )
            for target, counts in taken.items()
        }
