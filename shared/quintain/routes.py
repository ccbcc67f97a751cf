"""The routes: the exchange, routing key, request type and reply type of every operation.

An invoke request goes to the exchange ``quintain.invoke`` with the target's name as routing key, or an empty one for
the session's default. A request for the description of a host has a target's name as routing key; there the route's key
is the message type. Leases have no routes: they are conversations (`quintain.contracts.hosting`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from quintain.contracts import fleet, hosting, ledger
from quintain.contracts import session as admin
from quintain.contracts import session as session_messages
from quintain.contracts.fleet_figures import FleetFigures
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.message import Message
from quintain.contracts.service_card import ServiceCard
from quintain.topology import HOST, LEDGER, METADATA, PROBE, Exchange
from quintain.topology import INVOKE as INVOKE_EXCHANGE

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class Route(Generic[RequestT, ReplyT]):
    """One operation: its exchange and routing key, and the types of its request and its reply.

    ``key`` is also the AMQP type of the request. A request that ``names_user`` says which user of the broker sent it.
    """

    name: str
    exchange: Exchange
    key: str
    request_type: type[RequestT]
    reply_type: type[ReplyT]
    names_user: bool = False


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
TARGETS = Route("targets", METADATA, "targets", fleet.ListTargets, fleet.TargetList)
PAUSE = Route("pause", METADATA, "pause", admin.PauseTarget, admin.TargetPause)
RESUME = Route("resume", METADATA, "resume", admin.ResumeTarget, admin.TargetPause)
WORKERS = Route("workers", METADATA, "workers", admin.ListWorkers, admin.WorkerList)
DRAIN = Route("drain", METADATA, "drain", admin.DrainWorker, admin.WorkerList)
FLEET = Route("fleet", METADATA, "fleet", fleet.GetFleet, FleetFigures)
QUOTAS = Route("quotas", METADATA, "quotas", fleet.ListQuotas, fleet.QuotaList)
SET_QUOTA = Route("set_quota", METADATA, "set_quota", fleet.SetQuota, fleet.QuotaSettings)
SET_USER = Route("set_user", METADATA, "set_user", fleet.SetUser, fleet.UserRights)

#: The heartbeats of gateways and hosts, and those of metadata services: every metadata service reads them, and they
#: have no reply. Workers send their cards with the heartbeats of their leases.
BEAT = Route("beat", METADATA, "beat", ServiceCard, Message)
METADATA_BEAT = Route("metadata_beat", PROBE, "beat", ServiceCard, Message)

REGISTER = Route("register", LEDGER, "register", ledger.Register, ledger.LeaseRenewed, names_user=True)
HEARTBEAT = Route("heartbeat", LEDGER, "heartbeat", ledger.Heartbeat, ledger.LeaseRenewed, names_user=True)
ADMIT = Route("admit", LEDGER, "admit", ledger.AdmitBatch, ledger.AdmitReply)
OPEN_CHILD = Route("open_child", LEDGER, "open_child", ledger.OpenChild, session_messages.SessionOpened)
#: Published by a metadata service, read by any: it has no reply.
HEARTBEAT_PROBE = Route("heartbeat_probe", PROBE, "probe", ledger.HeartbeatProbe, Message)
SETTLE = Route("settle", LEDGER, "settle", ledger.SettleBatch, Message)

DESCRIBE_HOST = Route("describe_host", HOST, "describe_host", hosting.DescribeHost, hosting.HostDescribed)
