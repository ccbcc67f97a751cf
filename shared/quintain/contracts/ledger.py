"""Messages between workers and the metadata service on ``quintain.ledger``: register, heartbeat, admit, settle.

These are not part of the public protocol: workers and metadata service must be of one release.

- ``register`` and ``heartbeat`` renew the worker's lease.
- ``admit`` is idempotent and resent until it is answered: the same ``attemptId`` gets the same grant. Items of a batch
  are answered individually, in one or more replies, as soon as each is decided; an item that must wait (another worker
  holds the call, the target is at its limit) is answered when it is admitted.
- ``settle`` is published to a quorum queue with a publisher confirm and has no reply.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Base64Bytes, Field, StringConstraints

from quintain.contracts.agents import ConversationId
from quintain.contracts.credentials import CallProof, SessionToken, parse_proof
from quintain.contracts.invoke import FaultReply, Result, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.money import CostTerms, MaxCostUsd, Picodollars
from quintain.contracts.quota import QuotaCard, TryReport
from quintain.contracts.service_card import ServiceCard
from quintain.contracts.values import MAX_DEADLINE_SECONDS, Id, Number, RequestId, TargetName, Text, Whole

#: Upper bound of a target's ``max_concurrency``.
MAX_CONCURRENCY = 10_000

#: More requests than one attempt can send.
MAX_TRIES = 1_000_000

#: The longest wait between two tries, in milliseconds: no call lasts longer.
MAX_RETRY_AFTER_MS = int(MAX_DEADLINE_SECONDS * 1000)

#: A time in milliseconds since the epoch, small enough to be exact in every JSON parser.
Milliseconds = Annotated[Whole, Field(ge=0, lt=2**53)]

#: An id, a digest or a proof that a worker makes or has checked, in printable ASCII.
PRINTABLE = r"[ -~]{0,200}"
Token = Annotated[str, StringConstraints(pattern=f"^{PRINTABLE}$")]


class TargetCard(Message):
    """The public description of a target; it never contains a key.

    ``fingerprint`` is a hash of everything in the target's configuration that can change an answer, or None.
    ``worker_concurrency`` is how many of its calls one worker runs at a time; None is ``max_concurrency``.
    ``timeout_seconds`` is how long its calls may take, or None where it has no limit of its own. ``quota`` is what it
    shares with the other targets of its key and model; None where nothing limits it but ``max_concurrency``. ``cost``
    is the most that its calls cost. One that does not ``keeps_conversation`` takes one question, and no turns.
    """

    name: TargetName
    provider: Text
    model: Text | None = None
    judge_target: TargetName | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
    worker_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] | None = None
    fingerprint: Text | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS)] | None = None
    quota: QuotaCard | None = None
    cost: CostTerms | None = None
    keeps_conversation: bool = Field(default=True, exclude_if=bool)

    @property
    def slots(self) -> int:
        """How many calls of the target one worker runs at a time."""
        return min(self.worker_concurrency or self.max_concurrency, self.max_concurrency)


class DrainState(StrEnum):
    """How far a worker is with draining; the state only ever moves forward in this order."""

    #: It cannot be drained: a part of `quintain up` or `quintain run`.
    UNSUPPORTED = "unable"
    #: It can be drained on request.
    SUPPORTED = "able"
    #: An administrator requested it; the worker learns of it with its next heartbeat.
    REQUESTED = "asked"
    #: It takes no more calls and finishes the running ones.
    DRAINING = "draining"
    #: It has no running calls and exits; the last state that it reports.
    DRAINED = "drained"


class Register(Message):
    """A worker starts, and registers the targets it serves.

    ``incarnation`` is random per process. ``sole``: only one process at a time uses this worker id, so that an earlier
    process with the same id must be dead. ``drain``: whether the worker can be drained. ``protocol``: the
    version of the protocol that it speaks.
    """

    worker_id: Id
    incarnation: Id
    targets: list[TargetCard]
    sole: bool | None = None
    drain: DrainState | None = None
    protocol: int


class CallKey(Message):
    """Identifies a call: its request id within its session."""

    session_id: Id
    request_id: RequestId


class ConversationKey(Message):
    """Identifies a conversation: the id that its caller chose, within the caller's session."""

    session_id: Id
    conversation_id: ConversationId


class Cancellation(Message):
    """Comes to a worker's reply queue: it aborts those of these calls that it runs, and ends those of these
    conversations that it holds."""

    calls: list[CallKey]
    conversations: list[ConversationKey] | None = None


class Heartbeat(Message):
    """Renew the worker's lease.

    ``drain`` is the worker's progress with draining. ``card`` says who it is, for `quintain status`.
    """

    worker_id: Id
    incarnation: Id
    drain: DrainState | None = None
    card: ServiceCard | None = None


class HeartbeatProbe(Message):
    """Tells the metadata service that reads it that every heartbeat sent before ``sentAt`` was delivered.

    ``sent_at`` is on the ledger's clock, in milliseconds since the epoch. Only metadata services publish it.
    """

    sent_at: Milliseconds


class LeaseRenewed(Message):
    """The lease was renewed for another `Timings.lease_seconds`.

    ``known``: the ledger has this worker's registration. ``now`` is the store's clock in milliseconds since the epoch.
    ``taken_back`` are running calls of this worker that were cancelled; they are repeated with every heartbeat because
    a `Cancellation` may be lost.
    ``drain``: an administrator asked this worker to drain; repeated until it reports that it does.
    ``admit_key`` is the routing key of the answering service's own queue for admits, if it has one now.
    ``other_slots`` are the free slots that other workers have for this worker's targets, where they have any.
    """

    now: Milliseconds
    known: bool = True
    taken_back: list[CallKey] | None = None
    drain: bool | None = None
    admit_key: Id | None = None
    other_slots: dict[TargetName, Annotated[int, Field(ge=0)]] | None = None


class Admit(Message):
    """Ask for the admission of one attempt.

    ``problem`` is an error in the body found by the worker: the ledger checks the token first and then refuses with it,
    so that the order of checks is defined in one place. ``body_bytes`` is the size of the body, which the session may
    limit. ``traceparent`` is the call's own, as a batch carries many calls.

    The call is authorized by the session's ``token``, or by a ``proof`` and the ``session_id``. There is no token
    beside a proof, so that a metadata service that knows no proofs cannot read the batch: the admit is repeated.

    ``redelivered``: the broker delivered its message before, or a try for it has failed, so that an attempt for the
    same caller may run elsewhere, or its settle is still on the way.

    ``wait_until``: until when the call may wait for its first attempt, or for its next one after a try that failed.

    ``max_cost`` is the most that one try can cost, in picodollars; with ``is_estimate`` it may cost more. Where it is
    None, ``cost_problem`` says why it is not known. ``grader`` is that of the request.
    """

    token: str | None = None
    session_id: Token | None = None
    proof: Token | None = None
    request_id: RequestId
    attempt_id: Token
    target: TargetName
    body_sha256: Token
    body_bytes: Whole | None = None
    deadline: Whole | None = None
    wait_until: Whole | None = None
    problem: FaultReply | None = None
    traceparent: str | None = None
    redelivered: bool | None = None
    max_cost: Picodollars | None = None
    is_estimate: bool | None = None
    cost_problem: Text | None = None
    grader: Text | None = None

    def credential(self) -> SessionToken | CallProof:
        """Return what authorizes the call, whose format is right. Raises `Unauthorized`."""
        if self.proof is None:
            return SessionToken.parse(self.token)
        return parse_proof(
            self.session_id,
            self.proof,
            request_id=self.request_id,
            target=self.target,
            body_sha256=self.body_sha256,
            deadline=self.deadline,
        )


class AdmitBatch(Message):
    """Several admission requests of one worker."""

    incarnation: Token
    items: list[Admit]


class Admission(Message):
    """The ledger's decision on one attempt: a grant, a stored reply (``replay``), or a fault.

    ``attempt`` is the attempt's number, from 1; ``deadline`` is the call's, in milliseconds since the epoch.
    ``unproven``: an earlier attempt of this call may have been billed, so that a proof that this one was not billed
    refunds nothing. ``ignore_unsupported``: the session was opened with ``unsupported: ignore``.
    ``max_body_bytes`` is the session's limit, if it has one of its own. ``is_probe``: the provider is out, and this
    attempt tries whether it is back, so that a failing try of it does not count. ``tries`` is how many tries the call
    has had that count.
    """

    attempt_id: Token
    attempt: Whole = 0
    deadline: Milliseconds = 0
    call_count: Whole = 0
    max_calls: Whole = 0
    store_replies: bool = True
    unproven: bool = False
    ignore_unsupported: bool = False
    max_body_bytes: int | None = None
    replay: Result | None = None
    fault: FaultReply | None = None
    is_probe: bool | None = None
    tries: Whole = 0

    @property
    def is_grant(self) -> bool:
        """Whether the attempt may run."""
        return self.fault is None and not self.is_replay

    @property
    def is_replay(self) -> bool:
        """Whether it is a stored reply."""
        return self.replay is not None


class AdmitReply(Message):
    """The items decided so far; ``held`` are attempts that were received and must wait."""

    items: list[Admission]
    held: list[str] | None = None
    now: Milliseconds


class OpenChild(Message):
    """Open the child session of a call, for the target's agent; only the attempt that runs the call may.

    ``targets`` and the limits are those of the target's configuration, the first target is the default. The session
    ends with the call's deadline, or after ``expires_in_seconds``. A child that was opened for the call before is
    closed.
    """

    session_id: Id
    request_id: RequestId
    attempt_id: Id
    incarnation: Id
    targets: Annotated[list[TargetName], Field(min_length=1)]
    max_calls: Annotated[int, Field(ge=0)]
    max_cost_usd: MaxCostUsd | None = None
    expires_in_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class AttemptOutcome(StrEnum):
    """The outcome of an attempt, as its worker reports it."""

    #: A result: the call is committed.
    RESULT = "result"
    #: A charged fault: the provider did the work and the call failed.
    CHARGED = "charged"
    #: The attempt was provably not billed: the call is refunded.
    REFUND = "refund"
    #: The request may have reached the provider, with unknown result: charged, and counted as in doubt.
    IN_DOUBT = "doubt"
    #: The try failed, and the call waits for its next one, which is another attempt.
    RETRY = "retry"
    #: The worker stopped waiting for its grant; a grant that still arrives is void.
    NEVER_SENT = "never_sent"


class Settle(Message):
    """The outcome of one attempt.

    ``reply`` is stored for replays, as the text of its JSON: nobody reads it on the way. ``compressed_reply`` is one of
    more than `LARGE_REPLY_BYTES` as it is stored: compressed by zlib. The times and the cost are those of a result.
    ``fault`` is returned for repeated requests; ``traceparent`` is the call's own. ``report`` is how the provider took
    the call, for the quota of its target. ``tries`` is how many requests the attempt sent to the provider, and
    ``unproven`` how many of them failed, and may have been billed. ``cost`` is what the provider's answer cost, in
    picodollars; None where that is unknown.
    ``is_estimate``: what was reserved for it was no bound (`Admit.is_estimate`).

    With `AttemptOutcome.RETRY`, ``retry_after_ms`` is how long the next try waits at least, from when the ledger reads
    it; ``is_counted``: the try is one of the ``max_tries`` of its target.
    """

    session_id: Token
    request_id: RequestId
    attempt_id: Token
    outcome: AttemptOutcome
    reply: str | None = None
    compressed_reply: Base64Bytes | None = None
    queued_ms: Number | None = None
    duration_ms: Number | None = None
    cost_usd: Number | None = None
    fault: FaultReply | None = None
    token_usage: TokenUsage | None = None
    traceparent: str | None = None
    report: TryReport | None = None
    tries: Annotated[Whole, Field(ge=0, le=MAX_TRIES)] = 0
    unproven: Annotated[Whole, Field(ge=0, le=MAX_TRIES)] | None = None
    cost: Picodollars | None = None
    is_estimate: bool | None = None
    retry_after_ms: Annotated[Whole, Field(ge=0, le=MAX_RETRY_AFTER_MS)] | None = None
    is_counted: bool | None = None


class SettleBatch(Message):
    """The outcomes of several attempts of one worker."""

    incarnation: Token
    items: list[Settle]
