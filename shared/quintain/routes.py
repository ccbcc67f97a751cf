"""The routes: the exchange, routing key, request type and reply type of every operation, and the names of headers.

An invoke request goes to the exchange ``quintain.invoke`` with the target's name as routing key, or an empty one for
the session's default. Requests on ``quintain.host`` have a target's name as routing key for a lease or a description
of the host, and the lease's own key otherwise; there the route's key is the message type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quintain.contracts import fleet, ledger, remote_target
from quintain.contracts import fleet as discovery
from quintain.contracts import session as admin
from quintain.contracts import session as session_messages
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.message import Message
from quintain.observe.spans import TRACEPARENT_HEADER
from quintain.topology import DISCOVERY, HOST, LEDGER, METADATA, PROBE, Exchange
from quintain.topology import INVOKE as INVOKE_EXCHANGE

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class Route(Generic[RequestT, ReplyT]):
    """One operation: its exchange and routing key, and the types of its request and its reply.

    ``key`` is also the AMQP type of the request.
    """

    name: str
    exchange: Exchange
    key: str
    request_type: type[RequestT]
    reply_type: type[ReplyT]


INVOKE = Route("invoke", INVOKE_EXCHANGE, "", InvokeRequest, Result)

INFO = Route("info", METADATA, "info", session_messages.GetInfo, session_messages.Info)
OPEN = Route("open", METADATA, "open", session_messages.OpenSession, session_messages.SessionOpened)
AMEND = Route("amend", METADATA, "amend", session_messages.AmendSession, session_messages.Info)
CLOSE = Route("close", METADATA, "close", session_messages.CloseSession, session_messages.Info)
CLOSE_CHILDREN = Route(
    "close_children", METADATA, "close_children", session_messages.CloseChildren, session_messages.Info
)
RESERVE = Route("reserve", METADATA, "reserve", session_messages.ReserveCalls, session_messages.CallsReserved)
RELEASE = Route("release", METADATA, "release", session_messages.ReleaseCalls, session_messages.CallsReleased)
CANCEL = Route("cancel", METADATA, "cancel", session_messages.CancelCalls, session_messages.CallsCancelled)
LIST = Route("list", METADATA, "list", session_messages.ListSessions, session_messages.SessionList)
SHOW = Route("show", METADATA, "show", session_messages.ShowSession, session_messages.Info)
TARGETS = Route("targets", METADATA, "targets", discovery.ListTargets, discovery.TargetList)
PAUSE = Route("pause", METADATA, "pause", admin.PauseTarget, admin.TargetPause)
RESUME = Route("resume", METADATA, "resume", admin.ResumeTarget, admin.TargetPause)
WORKERS = Route("workers", METADATA, "workers", admin.ListWorkers, admin.WorkerList)
DRAIN = Route("drain", METADATA, "drain", admin.DrainWorker, admin.WorkerList)
FLEET = Route("fleet", METADATA, "fleet", fleet.GetFleet, fleet.FleetState)

#: Broadcast to all services; each replies with its service card.
DISCOVER = Route("discover", DISCOVERY, "discover", discovery.Discover, discovery.ServiceCard)

REGISTER = Route("register", LEDGER, "register", ledger.Register, ledger.LeaseRenewed)
HEARTBEAT = Route("heartbeat", LEDGER, "heartbeat", ledger.Heartbeat, ledger.LeaseRenewed)
ADMIT = Route("admit", LEDGER, "admit", ledger.AdmitBatch, ledger.AdmitReply)
OPEN_CHILD = Route("open_child", LEDGER, "open_child", ledger.OpenChild, session_messages.SessionOpened)
#: Published by a metadata service, read by any: it has no reply.
HEARTBEAT_PROBE = Route("heartbeat_probe", PROBE, "probe", ledger.HeartbeatProbe, Message)
SETTLE = Route("settle", LEDGER, "settle", ledger.SettleBatch, Message)

LEASE = Route("lease", HOST, "lease", remote_target.OpenLease, remote_target.LeaseOpened)
DESCRIBE_HOST = Route("describe_host", HOST, "describe_host", remote_target.DescribeHost, remote_target.HostDescribed)
DESCRIBE = Route("describe", HOST, "describe", remote_target.BareLeaseRequest, remote_target.LeaseResult)
SET_CONFIG = Route("set_config", HOST, "set_config", remote_target.SetConfig, remote_target.LeaseResult)
QUERY = Route("query", HOST, "query", remote_target.Query, remote_target.LeaseResult)
START_RUN = Route("start_run", HOST, "start_run", remote_target.StartRun, remote_target.LeaseResult)
CANCEL_RUN = Route("cancel_run", HOST, "cancel_run", remote_target.CancelRun, remote_target.LeaseResult)
RESET = Route("reset", HOST, "reset", remote_target.BareLeaseRequest, remote_target.LeaseResult)
TEARDOWN = Route("teardown", HOST, "teardown", remote_target.Teardown, remote_target.LeaseResult)
WATCH_PROCESS = Route("watch_process", HOST, "watch_process", remote_target.WatchProcess, remote_target.ProcessStatus)
RENEW = Route("renew", HOST, "renew", remote_target.BareLeaseRequest, remote_target.LeaseResult)

# Header names (``docs/protocol.md``).
TOKEN_HEADER = "x-quintain-session"  # noqa: S105 -- the name of a header
#: The proof of a call, beside the id of its session in `TOKEN_HEADER`.
PROOF_HEADER = "x-quintain-proof"
REQUEST_ID_HEADER = "x-quintain-request-id"
DEADLINE_HEADER = "x-quintain-deadline"
PROTOCOL_HEADER = "x-quintain-protocol"
ACCEPT_HEADER = "x-quintain-accept"
ROUTED_HEADER = "x-quintain-routed"
#: Present on a call that a worker without a free slot has put back into its queue.
RETURNED_HEADER = "x-quintain-returned"

#: When the request was published, in milliseconds since the epoch, on the metadata service's clock. RabbitMQ's own
#: message interceptor writes the same header; without it the time in the queue is unknown.
PUBLISHED_AT_HEADER = "timestamp_in_ms"

#: Values of `ACCEPT_HEADER`: partial messages wanted before the final one, pieces of the answer and notifications that
#: the call is running; and that the caller reads groups of replies.
ACCEPT_CHUNKS = "chunk"
ACCEPT_PROGRESS = "progress"
ACCEPT_GROUPS = "group"

#: The AMQP types of partial messages.
CHUNK_TYPE = "chunk"
PROGRESS_TYPE = "progress"

#: The version of the protocol. A request and a worker with another one are refused with ``bad_request``.
PROTOCOL_VERSION = 1

#: The headers of one call. In a group they stand in the head of its item; all others are the message's.
CALL_HEADERS = frozenset(
    {PROOF_HEADER, REQUEST_ID_HEADER, DEADLINE_HEADER, PUBLISHED_AT_HEADER, PROTOCOL_HEADER, TRACEPARENT_HEADER}
)

#: Headers that RabbitMQ adds to a message that it delivers again, and that are not part of it: how often it delivered
#: it before.
DELIVERY_COUNT_HEADERS = ("x-delivery-count", "x-acquired-count")

#: All routes.
ROUTES: tuple[Route[Any, Any], ...] = (
    INVOKE,
    *(INFO, OPEN, AMEND, CLOSE, CLOSE_CHILDREN, RESERVE, RELEASE, CANCEL),
    *(LIST, SHOW, TARGETS, PAUSE, RESUME, WORKERS, DRAIN, FLEET),
    DISCOVER,
    *(REGISTER, HEARTBEAT, HEARTBEAT_PROBE, ADMIT, SETTLE, OPEN_CHILD),
    *(LEASE, DESCRIBE_HOST, DESCRIBE, SET_CONFIG, QUERY, START_RUN, CANCEL_RUN, RESET, TEARDOWN, RENEW, WATCH_PROCESS),
)
