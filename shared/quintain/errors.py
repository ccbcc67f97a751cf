"""The exception hierarchy.

    QuintainError
    ├── ConfigError                 a configuration file or environment variable cannot be used
    │   └── LedgerInUse             another process has this ledger open
    ├── BusError                    the message could not be transported
    │   ├── BrokerUnavailable       no broker answered in time
    │   ├── BrokerRefused           the broker refused permanently: permissions, virtual host, arguments
    │   ├── GatewayUnavailable      over HTTP: no gateway answered, or the connection to it was lost
    │   ├── Unroutable              no queue is bound for this exchange and routing key
    │   └── QueueFull               the broker nacked the message
    ├── NoAnswer                    the request was delivered, and no reply arrived in time
    ├── HostLost                    the host of a leased target, or the lease itself, is gone
    │   └── LeaseRequestNotDelivered   … before the request was delivered: it had no effect
    ├── RemoteTargetError           a hosted target raised an exception whose class is unknown here
    └── Fault                       a typed reply that says why a call has no result
        ├── BadRequest              400 bad_request
        ├── UnsupportedParameter    400 unsupported_parameter
        ├── UnknownTarget           400 unknown_target
        ├── Unauthorized            401 unauthorized
        ├── ForbiddenTarget         403 forbidden_target
        ├── RequestConflict         409 request_conflict
        ├── ReplyExpired            410 reply_expired          (charged)
        ├── ConversationLost        410 conversation_lost
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
        ├── BudgetUnavailable       503 budget_unavailable     (retryable, charge unknown)
        ├── Throttled               503 throttled              (retryable)
        ├── Expired                 504 expired
        └── TimedOut                504 timeout                (charged)

The first line of a class's docstring is its default message. Programs decide by the attributes (``code``, ``status``,
``retryable``, ``charged``), never by the message. These are the values of the table in ``docs/protocol/README.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


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
    """The message could not be sent or received."""


class BrokerUnavailable(BusError):
    """No broker answered in time."""


class BrokerRefused(BusError):
    """The broker refused, and would refuse again."""


class GatewayUnavailable(BusError):
    """No gateway answered, or the connection to it was lost."""


class Unroutable(BusError):
    """Nothing is bound where this message was sent.

    ``maybe_delivered_before``: an earlier publish of the same message lost its confirm, and may have been delivered.
    """

    maybe_delivered_before = False


class QueueFull(BusError):
    """The broker nacked the message, and did not take it: the queue is full or being deleted, or out of reach now."""


class NoAnswer(QuintainError):
    """No reply arrived in time."""


class HostLost(QuintainError, RuntimeError):
    """The host of a leased target has gone, or the lease has."""


class LeaseRequestNotDelivered(HostLost):
    """The lease had ended before the request was delivered, so the request had no effect."""


class RemoteTargetError(QuintainError, RuntimeError):
    """A hosted target raised an exception whose class is not known here; the message has its class and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderError:
    """A provider's own words about a failure, shortened, with secrets masked."""

    status: int | None = None
    code: str | None = None
    type: str | None = None
    parameter: str | None = None
    message: str | None = None


class Fault(QuintainError):
    """The call has no result.

    ``retryable``: the request may be sent again with the same request id; never true for a charged fault. ``charged``:
    the call counts against ``max_calls``; None: unknown, because no ledger decided it, and another copy of the request
    may have been admitted. The same request again, with the same request id, is answered with what the ledger knows.
    ``retry_after_ms``: milliseconds to wait before a retry, if known. ``parameter``: the setting that the fault is
    about. ``provider_error``: the provider's own words. ``steps``: what an agent did before, each an `AgentStep`, and
    ``steps_cut`` what was left out of that. ``duration_ms``: how long all its tries took at the provider; ``cost_usd``:
    what the calls that an agent made before it cost. Example: ``except quintain.Fault as fault: print(fault.code)``.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    #: The fixed value of ``retryable`` and ``charged`` for this class; None if the sender decides.
    always_retryable: ClassVar[bool | None] = False
    always_charged: ClassVar[bool | None] = False

    parameter: str | None
    provider_error: ProviderError | None

    # Their classes are those of messages, which know faults.
    steps: Sequence[Any]
    steps_cut: Any

    #: Whether faults of this class are sent only where no ledger decided whether the call is charged.
    always_unknown: ClassVar[bool] = False

    def __init__(
        self,
        message: str | None = None,
        *,
        charged: bool | None = None,
        charge_unknown: bool = False,
        retry_after_ms: int | None = None,
        available_targets: Sequence[str] | None = None,
    ) -> None:
        super().__init__(message)
        known_charge = bool(charged) if self.always_charged is None else self.always_charged
        self.charged: bool | None = None if charge_unknown or self.always_unknown else known_charge
        self.retryable = self.charged is False if self.always_retryable is None else self.always_retryable
        self.retry_after_ms = retry_after_ms
        self.available_targets = None if available_targets is None else tuple(available_targets)
        self.parameter = self.provider_error = self.steps_cut = None
        self.steps = ()
        self.duration_ms: float | None = None
        self.cost_usd: float | None = None


class BadRequest(Fault):
    """The request does not follow the protocol."""

    code, status = "bad_request", 400


class UnsupportedParameter(BadRequest):
    """The target's provider cannot honour a parameter of the request."""

    code, status = "unsupported_parameter", 400


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
    """This call was answered, and its stored reply is gone; a retry needs a new request id."""

    code, status = "reply_expired", 410
    always_charged = True


class ConversationLost(Fault):
    """The worker that held this conversation has ended; it has to begin again, under new request ids."""

    code, status = "conversation_lost", 410
    always_charged = None


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
    """The caller cancelled the call."""

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
    always_unknown = True


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


#: Every fault class of this module by its code on the wire.
FAULTS: dict[str, type[Fault]] = {cls.code: cls for cls in (*Fault.__subclasses__(), *BadRequest.__subclasses__())}
