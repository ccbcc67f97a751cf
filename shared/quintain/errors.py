"""Everything that can go wrong, as one tree.

    QuintainError
    ├── ConfigError                 a file or a variable the operator wrote cannot be used
    │   └── LedgerInUse             another process has this ledger open
    ├── BusError                    the message could not be carried
    │   ├── BrokerUnavailable       no broker answered in time
    │   ├── BrokerRefused           the broker said no, and would again: permissions, virtual host, arguments
    │   ├── GatewayUnavailable      over HTTP: no gateway answered, or the connection to it was lost
    │   ├── Unroutable              nothing is bound where this was sent
    │   └── QueueFull               the queue refused it; it was not taken
    ├── NoAnswer                    it was carried, and no answer came in time
    ├── HostLost                    the host of a leased target has gone, or its lease has
    │   └── NeverAsked              … before what was asked of it was carried there: nothing came of that
    ├── RemoteTargetError           a hosted target raised what this side does not know
    └── Fault                       a typed answer: this is why your call has no result
        ├── BadRequest              400 bad_request
        ├── UnknownTarget           400 unknown_target
        ├── Unauthorized            401 unauthorized
        ├── ForbiddenTarget         403 forbidden_target
        ├── RequestConflict         409 request_conflict
        ├── ReplyExpired            410 reply_expired          (charged)
        ├── PayloadTooLarge         413 payload_too_large
        ├── Rejected                422 rejected               (charged)
        ├── BudgetExhausted         429 budget_exhausted
        ├── Cancelled               499 cancelled
        ├── InternalFault           500 internal
        ├── TargetUnavailable       502 target_unavailable
        ├── ProviderFailed          502 provider_error
        ├── ReplyTooLarge           502 reply_too_large        (charged)
        ├── WorkerLost              502 worker_lost            (charged)
        ├── Overloaded              503 overloaded             (retryable)
        ├── BudgetUnavailable       503 budget_unavailable     (retryable)
        ├── Throttled               503 throttled              (retryable)
        ├── Expired                 504 expired
        └── TimedOut                504 timeout                (charged)

The docstring of a class is its message where none is given. What a program decides by (``code``, ``status``,
``retryable``, ``charged``) are attributes, never words of the message. The table of ``protocol.md`` §3 is the
class bodies below, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class QuintainError(Exception):
    """Something went wrong in Quintain."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        super().__init__(self.message)


class ConfigError(QuintainError):
    """The configuration cannot be used."""


class LedgerInUse(ConfigError):
    """The ledger is open in another process."""


class BusError(QuintainError):
    """The message could not be carried."""


class BrokerUnavailable(BusError):
    """No broker answered in time."""


class BrokerRefused(BusError):
    """The broker refused, and would refuse again."""


class GatewayUnavailable(BusError):
    """No gateway answered, or the connection to it was lost."""


class Unroutable(BusError):
    """Nothing is bound where this message was sent.

    ``maybe_delivered_before``: the same message went out before, its confirm was lost, and it may have found its way
    then.
    """

    maybe_delivered_before = False


class QueueFull(BusError):
    """The queue refused the message; it was not taken."""


class NoAnswer(QuintainError):
    """The question was carried, and no answer came in time."""


class HostLost(QuintainError, RuntimeError):
    """The host of a leased target has gone, or the lease has."""


class LeaseRequestNotDelivered(HostLost):
    """The lease had ended before this was asked of it, and nothing came of it."""


class RemoteTargetError(QuintainError, RuntimeError):
    """A hosted target raised what this side does not know; its name and words are in the message."""


class Fault(QuintainError):
    """The call has no result.

    ``retryable``: the same request id may be sent again (never true of a charged one). ``charged``: it counts
    against ``max_calls``. ``retry_after_ms``: milliseconds to wait before trying again, where somebody said so.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    #: The table's word on retrying and charging, where it has one; None where the ledger decides.
    always_retryable: ClassVar[bool | None] = False
    always_charged: ClassVar[bool | None] = False

    def __init__(
        self,
        message: str | None = None,
        *,
        charged: bool | None = None,
        retry_after_ms: int | None = None,
        available_targets: Sequence[str] | None = None,
    ) -> None:
        super().__init__(message)
        self.charged = bool(charged) if self.always_charged is None else self.always_charged
        self.retryable = not self.charged if self.always_retryable is None else self.always_retryable
        self.retry_after_ms = retry_after_ms
        self.available_targets = None if available_targets is None else tuple(available_targets)


class BadRequest(Fault):
    """The request is not what the protocol says."""

    code, status = "bad_request", 400


class UnknownTarget(Fault):
    """No target of this name is known."""

    code, status = "unknown_target", 400


class Unauthorized(Fault):
    """Unauthorized"""

    code, status = "unauthorized", 401


class ForbiddenTarget(Fault):
    """This session may not call this target."""

    code, status = "forbidden_target", 403


class RequestConflict(Fault):
    """This request id was used with another body."""

    code, status = "request_conflict", 409


class ReplyExpired(Fault):
    """This call was answered, and its stored reply is gone; another try is a new request id."""

    code, status = "reply_expired", 410
    always_charged = True


class PayloadTooLarge(Fault):
    """The request is larger than the limit."""

    code, status = "payload_too_large", 413


class Rejected(Fault):
    """The provider judged the request itself wrong."""

    code, status = "rejected", 422
    always_charged = True


class BudgetExhausted(Fault):
    """Max calls exceeded"""

    code, status = "budget_exhausted", 429


class Cancelled(Fault):
    """The caller took the call back."""

    code, status = "cancelled", 499
    always_charged = None


class InternalFault(Fault):
    """A defect of Quintain's own; its log says more."""

    code, status = "internal", 500
    always_retryable = None
    always_charged = None


class TargetUnavailable(Fault):
    """The provider refused the credentials, the model or the quota."""

    code, status = "target_unavailable", 502


class ProviderFailed(Fault):
    """The provider failed."""

    code, status = "provider_error", 502
    always_retryable = None
    always_charged = None


class ReplyTooLarge(Fault):
    """The provider's answer is larger than a reply may be."""

    code, status = "reply_too_large", 502
    always_charged = True


class WorkerLost(Fault):
    """Every allowed attempt died with its worker; what reached the provider is in doubt."""

    code, status = "worker_lost", 502
    always_charged = True


class Overloaded(Fault):
    """Too much is waiting here; try again later."""

    code, status = "overloaded", 503
    always_retryable = True


class BudgetUnavailable(Fault):
    """The ledger cannot be reached, so nothing may be spent."""

    code, status = "budget_unavailable", 503
    always_retryable = True


class Throttled(Fault):
    """The provider's rate limit outlasted the deadline."""

    code, status = "throttled", 503
    always_retryable = True


class Expired(Fault):
    """The deadline passed."""

    code, status = "expired", 504
    always_charged = None


class TimedOut(Fault):
    """The deadline passed while the provider worked; the call is in doubt."""

    code, status = "timeout", 504
    always_charged = True


#: Every fault by its code on the wire.
FAULTS: dict[str, type[Fault]] = {
    cls.code: cls
    for cls in (
        BadRequest,
        UnknownTarget,
        Unauthorized,
        ForbiddenTarget,
        RequestConflict,
        ReplyExpired,
        PayloadTooLarge,
        Rejected,
        BudgetExhausted,
        Cancelled,
        InternalFault,
        TargetUnavailable,
        ProviderFailed,
        ReplyTooLarge,
        WorkerLost,
        Overloaded,
        BudgetUnavailable,
        Throttled,
        Expired,
        TimedOut,
    )
}
