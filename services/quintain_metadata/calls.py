"""Runs admits and settles in batches: reads their rows, decides them by `decisions`, and writes. One is a batch too.

What is read stays true until the transaction ends: it holds the locks of the calls, of their sessions' reservations and
of the targets, then the rows of the sessions, each kind in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from quintain.contracts.credentials import CallProof, SessionToken
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.errors import Fault
from quintain_metadata import attempts, call_rows, replies, session_rows, targets
from quintain_metadata.call_rows import CallKey, CallRow
from quintain_metadata.decisions import Decisions, Deferred, Replay, Requester, Rows
from quintain_metadata.lifecycle import CallState, Transition
from quintain_metadata.store import AdvisoryLock, Moment, SqlProgram, lock_key, unwrap

Settled: TypeAlias = tuple[CallRow | None, Transition]


def run_batch(moment: Moment, operations: Sequence[CallOperation]) -> SqlProgram[list[Any]]:
    """Run operations as if one after another; returns the result or the fault of each."""
    outcomes = list[Any]()
    for one_of_each_call in _rounds(operations):
        decisions = Decisions(moment, (yield from _read(moment, one_of_each_call)))
        for operation in one_of_each_call:
            try:
                outcomes.append(operation.decide(decisions))
            except Fault as refusal:
                outcomes.append(refusal)
        yield from decisions.write()
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Replay):
            outcomes[number] = yield from _read_replay(outcome)
    return outcomes


def _read_replay(replay: Replay) -> SqlProgram[Admission | Fault]:
    try:
        return (yield from replies.replay(replay.session, replay.call, replay.attempt_id))
    except Fault as expired:
        return expired


def _rounds(operations: Sequence[CallOperation]) -> Iterator[list[CallOperation]]:
    """Divide operations, in their order, into lists with one operation of each call."""
    keys, current = set[CallKey](), list[CallOperation]()
    for operation in operations:
        if operation.key in keys:
            yield current
            keys, current = set(), []
        if operation.key is not None:
            keys.add(operation.key)
        current.append(operation)
    yield current


def _read(moment: Moment, operations: Sequence[CallOperation]) -> SqlProgram[Rows]:
    """Lock and read the rows that these operations are decided by."""
    keyed = {operation.key: operation for operation in operations if operation.key is not None}
    admits = {key: each for key, each in keyed.items() if isinstance(each, AdmitOperation)}
    if not keyed:
        return Rows({}, {}, {}, {}, {})
    wanted_targets = sorted({each.request.target for each in admits.values()})
    yield AdvisoryLock(
        (
            *(lock_key("call", *key) for key in sorted(keyed)),
            *(
                lock_key("reservations", name)
                for name in sorted({key[0] for key, each in keyed.items() if each.may_release})
            ),
            *(lock_key("target", target) for target in wanted_targets),
        )
    )
    sessions = yield from session_rows.lock_sessions(sorted({session_id for session_id, _ in keyed}))
    calls = yield from call_rows.read_calls(list(keyed))
    rows = Rows(sessions, calls, {}, {}, {})
    yield from _read_attempts(rows, keyed)
    if admits:
        incarnations = {each.incarnation for each in admits.values()}
        incarnations |= {calls[key].incarnation or "" for key in admits if key in calls}
        rows.workers = yield from attempts.read_workers(moment, sorted(incarnations))
        rows.capacities = yield from targets.free_capacities(moment, wanted_targets)
    return rows


def _read_attempts(rows: Rows, keyed: dict[CallKey, CallOperation]) -> SqlProgram[None]:
    """Read the rows of these attempts, and those of the other attempts at calls that may have several."""
    ids, several = list[str](), list[CallKey]()
    for key, operation in keyed.items():
        call = rows.calls.get(key)
        if isinstance(operation, AdmitOperation):
            ids.append(operation.request.attempt_id)
            if call is not None and call.attempts:
                several.append(key)
        elif not operation.is_plain(call):
            ids.append(operation.settlement.attempt_id)
            if call is not None and call.attempts > 1:
                several.append(key)
    rows.attempts = yield from attempts.read_attempts(ids, several)


@dataclass(slots=True)
class AdmitOperation:
    """An admit; its outcome is a grant, the stored answer, `Deferred`, or the `Fault` that refuses it.

    ``after_others``: other admits wait for the target, so that a new call waits too; a take-over does not.
    """

    request: Admit
    incarnation: str
    after_others: bool = False
    #: The session's and the request's id; None where the credential has the wrong format.
    key: CallKey | None = field(init=False, default=None)
    may_release: ClassVar[bool] = True
    run_batch: ClassVar[RunBatch] = staticmethod(run_batch)
    _credential: SessionToken | CallProof | Fault = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._credential = self.request.credential()
            self.key = (self._credential.id, self.request.request_id)
        except Fault as unauthorized:
            self._credential = unauthorized

    def decide(self, decisions: Decisions) -> Admission | Deferred | Replay:
        """Decide it. Raises the `Fault` that refuses it."""
        if isinstance(self._credential, Fault):
            raise self._credential
        return decisions.admit(Requester(self.request, self._credential, self.incarnation, self.after_others))

    def __call__(self, moment: Moment) -> SqlProgram[Admission | Deferred]:
        """Run this admit by itself."""
        (outcome,) = yield from run_batch(moment, [self])
        admitted: Admission | Deferred = unwrap(outcome)
        return admitted


@dataclass(slots=True)
class SettleOperation:
    """A settle; its outcome is the call as it was, and the transition."""

    settlement: Settle
    key: CallKey = field(init=False)
    run_batch: ClassVar[RunBatch] = staticmethod(run_batch)

    def __post_init__(self) -> None:
        self.key = (self.settlement.session_id, self.settlement.request_id)

    @property
    def may_release(self) -> bool:
        """Whether it may release a reservation."""
        return self.settlement.outcome is AttemptOutcome.NEVER_SENT

    def is_plain(self, call: CallRow | None) -> bool:
        """Whether it is the result of the attempt that holds its running call, which has no row of its own."""
        return (
            call is not None
            and call.state is CallState.RUNNING
            and call.attempt_id == self.settlement.attempt_id
            and self.settlement.outcome is AttemptOutcome.RESULT
        )

    def decide(self, decisions: Decisions) -> Settled:
        """Decide it."""
        return decisions.settle(self.settlement)

    def __call__(self, moment: Moment) -> SqlProgram[Settled]:
        """Run this settle by itself."""
        (outcome,) = yield from run_batch(moment, [self])
        settled: Settled = unwrap(outcome)
        return settled


CallOperation: TypeAlias = AdmitOperation | SettleOperation
RunBatch: TypeAlias = Callable[[Moment, Sequence[Any]], SqlProgram[list[Any]]]


def admit(moment: Moment, request: Admit, incarnation: str) -> SqlProgram[Admission | Deferred]:
    """Run one admit (`AdmitOperation`)."""
    return AdmitOperation(request, incarnation)(moment)


def settle(moment: Moment, settlement: Settle) -> SqlProgram[Settled]:
    """Run one settle (`SettleOperation`)."""
    return SettleOperation(settlement)(moment)
