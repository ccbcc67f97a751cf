"""Quintain: the dispatch layer for AI evaluations.

An evaluator's side in three lines::

    async with quintain.connect() as target:
        result = await target.invoke(question="What is the capital of France?")
        print(result.raw_text)
"""

from quintain.client.client import BatchItem, Client
from quintain.client.connect import connect
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result, TokenUsage
from quintain.contracts.metadata import Info
from quintain.errors import (
    BadRequest,
    BrokerRefused,
    BrokerUnavailable,
    BudgetExhausted,
    BudgetUnavailable,
    BusError,
    Cancelled,
    ConfigError,
    Expired,
    Fault,
    ForbiddenTarget,
    InternalFault,
    NoAnswer,
    Overloaded,
    PayloadTooLarge,
    ProviderFailed,
    QueueFull,
    QuintainError,
    Rejected,
    ReplyExpired,
    ReplyTooLarge,
    RequestConflict,
    TargetUnavailable,
    Throttled,
    TimedOut,
    Unauthorized,
    UnknownTarget,
    Unroutable,
    WorkerLost,
)

__all__ = [
    "BadRequest",
    "BatchItem",
    "BrokerRefused",
    "BrokerUnavailable",
    "BudgetExhausted",
    "BudgetUnavailable",
    "BusError",
    "Cancelled",
    "ChatMessage",
    "Client",
    "ConfigError",
    "Expired",
    "Fault",
    "ForbiddenTarget",
    "Info",
    "InternalFault",
    "InvokeRequest",
    "InvokeSettings",
    "NoAnswer",
    "Overloaded",
    "PayloadTooLarge",
    "ProviderFailed",
    "QueueFull",
    "QuintainError",
    "Rejected",
    "ReplyExpired",
    "ReplyTooLarge",
    "RequestConflict",
    "Result",
    "TargetUnavailable",
    "Throttled",
    "TimedOut",
    "TokenUsage",
    "Unauthorized",
    "UnknownTarget",
    "Unroutable",
    "WorkerLost",
    "connect",
]
