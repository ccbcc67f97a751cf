"""Who is asked what: every address with its question and its answer. This page is the system.

A target's own address is `invoke_key`: exchange ``quintain.invoke``, routing key = the target's name, or empty
for the session's default. The routes on ``quintain.host`` name a type; their key is a target's name for a lease, and
a lease's own key for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quintain.contracts import discovery, hosted, ledger, metadata, operating
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.message import Message
from quintain.topology import DISCOVERY, HOST, LEDGER, METADATA, Exchange
from quintain.topology import INVOKE as INVOKE_EXCHANGE

Ask = TypeVar("Ask", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Route(Generic[Ask, Answer]):
    """One address: publish ``asks`` to ``exchange`` with ``key`` (also the message's ``type``); ``answers`` comes."""

    name: str
    exchange: Exchange
    key: str
    asks: type[Ask]
    answers: type[Answer]


INVOKE = Route("invoke", INVOKE_EXCHANGE, "", InvokeRequest, Result)

INFO = Route("info", METADATA, "info", metadata.AskInfo, metadata.Info)
OPEN = Route("open", METADATA, "open", metadata.OpenSession, metadata.SessionOpened)
AMEND = Route("amend", METADATA, "amend", metadata.AmendSession, metadata.Info)
CLOSE = Route("close", METADATA, "close", metadata.CloseSession, metadata.Info)
RESERVE = Route("reserve", METADATA, "reserve", metadata.ReserveCalls, metadata.CallsReserved)
RELEASE = Route("release", METADATA, "release", metadata.ReleaseCalls, metadata.CallsReleased)
CANCEL = Route("cancel", METADATA, "cancel", metadata.CancelCalls, metadata.CallsCancelled)
LIST = Route("list", METADATA, "list", metadata.ListSessions, metadata.SessionList)
SHOW = Route("show", METADATA, "show", metadata.ShowSession, metadata.Info)
TARGETS = Route("targets", METADATA, "targets", discovery.ListTargets, discovery.TargetList)
PAUSE = Route("pause", METADATA, "pause", operating.PauseTarget, operating.TargetPause)
RESUME = Route("resume", METADATA, "resume", operating.ResumeTarget, operating.TargetPause)
WORKERS = Route("workers", METADATA, "workers", operating.ListWorkers, operating.WorkerList)
DRAIN = Route("drain", METADATA, "drain", operating.DrainWorker, operating.WorkerList)

#: Heard by every service: each answers with its card.
DISCOVER = Route("discover", DISCOVERY, "discover", discovery.Discover, discovery.ServiceCard)

REGISTER = Route("register", LEDGER, "register", ledger.Register, ledger.LeaseRenewed)
HEARTBEAT = Route("heartbeat", LEDGER, "heartbeat", ledger.Heartbeat, ledger.LeaseRenewed)
ADMIT = Route("admit", LEDGER, "admit", ledger.AdmitBatch, ledger.AdmitAnswer)
SETTLE = Route("settle", LEDGER, "settle", ledger.SettleBatch, Message)

LEASE = Route("lease", HOST, "lease", hosted.AskLease, hosted.LeaseAnswer)
DESCRIBE = Route("describe", HOST, "describe", hosted.Plain, hosted.Done)
SET_CONFIG = Route("set_config", HOST, "set_config", hosted.SetConfig, hosted.Done)
QUERY = Route("query", HOST, "query", hosted.Query, hosted.Done)
START_RUN = Route("start_run", HOST, "start_run", hosted.StartRun, hosted.Done)
CANCEL_RUN = Route("cancel_run", HOST, "cancel_run", hosted.CancelRun, hosted.Done)
RESET = Route("reset", HOST, "reset", hosted.Plain, hosted.Done)
TEARDOWN = Route("teardown", HOST, "teardown", hosted.Plain, hosted.Done)
RENEW = Route("renew", HOST, "renew", hosted.Plain, hosted.Done)

# The headers of ``protocol.md`` §2.
TOKEN_HEADER = "x-quintain-session"  # noqa: S105 -- the name of a header
REQUEST_ID_HEADER = "x-quintain-request-id"
DEADLINE_HEADER = "x-quintain-deadline"
PROTOCOL_HEADER = "x-quintain-protocol"
ACCEPT_HEADER = "x-quintain-accept"
ROUTED_HEADER = "x-quintain-routed"

#: When the request was published, in milliseconds since the epoch, on the metadata service's clock. RabbitMQ's
#: own message interceptor writes the same header; without it the time in the queue is not known.
PUBLISHED_HEADER = "timestamp_in_ms"

#: What `ACCEPT_HEADER` asks for besides the one final message: pieces of the answer as they come, and a word every now
#: and then that the call still runs.
ACCEPT_CHUNKS = "chunk"
ACCEPT_PROGRESS = "progress"

#: The types of such messages.
CHUNK_TYPE = "chunk"
PROGRESS_TYPE = "progress"

#: The version of the wire; a request that carries another is a ``bad_request``.
PROTOCOL_VERSION = 1

#: Every address.
ROUTES: tuple[Route[Any, Any], ...] = (
    INVOKE,
    *(INFO, OPEN, AMEND, CLOSE, RESERVE, RELEASE, CANCEL, LIST, SHOW, TARGETS, PAUSE, RESUME, WORKERS, DRAIN),
    DISCOVER,
    *(REGISTER, HEARTBEAT, ADMIT, SETTLE),
    *(LEASE, DESCRIBE, SET_CONFIG, QUERY, START_RUN, CANCEL_RUN, RESET, TEARDOWN, RENEW),
)
