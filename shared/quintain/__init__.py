"""Quintain: a dispatch layer for AI evaluations on RabbitMQ.

Invoke a target from an evaluator's script::

    async with quintain.connect() as target:
        result = await target.invoke(question="What is the capital of France?")
        print(result.raw_text)

`quintain.sync` offers the same calls to programs that do not use asyncio. `quintain.evaluate` asks and grades cases,
and `quintain.run` runs an evaluation file. `quintain.lease` drives a target under test, event by event.
"""

import importlib
import sys
from typing import Any

#: What is offered, by its module; a module without names is offered itself. A module is imported when one of its names
#: is first used (PEP 562), so that a program loads only what it needs. For type checkers: `__init__.pyi`.
_OFFERED: dict[str, tuple[str, ...]] = {
    "quintain.sync": (),
    "quintain.client.client": ("Client", "connect"),
    "quintain.client.transport": ("BatchItem",),
    "quintain.contracts.agents": ("AgentStep",),
    "quintain.contracts.invoke": (
        "ChatMessage",
        "InvokeRequest",
        "InvokeSettings",
        "Result",
        "TokenUsage",
    ),
    "quintain.contracts.session": ("Info",),
    "quintain.controller.channel": ("EventChannel", "EventEnvelope", "event_channel"),
    "quintain.controller.leased_target": ("LeasedTarget", "lease"),
    "quintain.controller.trajectory": ("FilteredTrajectory", "Trajectory"),
    "quintain.errors": (
        "BadRequest",
        "BrokerRefused",
        "BrokerUnavailable",
        "BudgetExhausted",
        "BudgetUnavailable",
        "BusError",
        "Cancelled",
        "ConfigError",
        "Expired",
        "Fault",
        "ForbiddenTarget",
        "GatewayUnavailable",
        "InternalFault",
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
        "TargetUnavailable",
        "Throttled",
        "TimedOut",
        "Unauthorized",
        "UnknownTarget",
        "Unroutable",
        "WorkerLost",
    ),
    "quintain.graders": ("Case", "Grader", "GraderInput", "grader"),
    "quintain.target": (
        "ConfigSpec",
        "Controllable",
        "ControllableInjection",
        "ControllableNoInjection",
        "ControllablePostCallEvent",
        "ControllablePreCallEvent",
        "Event",
        "EventResponse",
        "Observable",
        "ObservableEvent",
        "ObservableValue",
        "QueryParam",
        "QuerySpec",
        "Scope",
        "SecurityDomain",
        "SecurityDomainTag",
        "Target",
        "scope_includes",
    ),
    "quintain_runner.evaluation": ("EvaluationResult", "evaluate", "run"),
}

_MODULES = {name: module for module, names in _OFFERED.items() for name in names or (module.rpartition(".")[2],)}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    module = importlib.import_module(_MODULES[name])
    value = getattr(module, name) if _OFFERED[_MODULES[name]] else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Without submodules and imports: completion in an editor or a notebook shows what users call.
    return sorted(_MODULES)


__all__ = __dir__()  # noqa: PLE0605 -- made from the table
