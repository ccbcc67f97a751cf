"""Quintain: a dispatch layer for AI evaluations on RabbitMQ.

Invoke a target from an evaluator's script::

    async with quintain.connect() as target:
        result = await target.invoke(question="What is the capital of France?")
        print(result.raw_text)

`quintain.sync` offers the same calls to programs that do not use asyncio. `quintain.evaluate` asks and grades cases,
and `quintain.run` runs an evaluation file.
"""

from quintain.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "quintain.sync": (),
        "quintain.client.client": ("Client", "connect"),
        "quintain.client.transport": ("BatchItem",),
        "quintain.contracts.invoke": (
            "ChatMessage",
            "InvokeRequest",
            "InvokeSettings",
            "Result",
            "TokenUsage",
        ),
        "quintain.contracts.session": ("Info",),
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
    },
)

# For type checkers and editors the names are in `__init__.pyi`.
__all__ = __dir__()  # noqa: PLE0605
