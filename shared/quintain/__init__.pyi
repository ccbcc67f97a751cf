"""The names that `quintain` offers, for type checkers and editors; `__init__.py` imports each when it is used."""

from quintain import sync as sync
from quintain.client.client import Client as Client
from quintain.client.client import connect as connect
from quintain.client.transport import BatchItem as BatchItem
from quintain.contracts.agents import AgentStep as AgentStep
from quintain.contracts.invoke import (
    ChatMessage as ChatMessage,
)
from quintain.contracts.invoke import (
    InvokeRequest as InvokeRequest,
)
from quintain.contracts.invoke import (
    InvokeSettings as InvokeSettings,
)
from quintain.contracts.invoke import (
    Result as Result,
)
from quintain.contracts.invoke import (
    TokenUsage as TokenUsage,
)
from quintain.contracts.session import Info as Info
from quintain.controller.channel import (
    EventChannel as EventChannel,
)
from quintain.controller.channel import (
    EventEnvelope as EventEnvelope,
)
from quintain.controller.channel import (
    event_channel as event_channel,
)
from quintain.controller.leased_target import (
    LeasedTarget as LeasedTarget,
)
from quintain.controller.leased_target import (
    lease as lease,
)
from quintain.controller.trajectory import (
    FilteredTrajectory as FilteredTrajectory,
)
from quintain.controller.trajectory import (
    Trajectory as Trajectory,
)
from quintain.errors import (
    BadRequest as BadRequest,
)
from quintain.errors import (
    BrokerRefused as BrokerRefused,
)
from quintain.errors import (
    BrokerUnavailable as BrokerUnavailable,
)
from quintain.errors import (
    BudgetExhausted as BudgetExhausted,
)
from quintain.errors import (
    BudgetUnavailable as BudgetUnavailable,
)
from quintain.errors import (
    BusError as BusError,
)
from quintain.errors import (
    Cancelled as Cancelled,
)
from quintain.errors import (
    ConfigError as ConfigError,
)
from quintain.errors import (
    Expired as Expired,
)
from quintain.errors import (
    Fault as Fault,
)
from quintain.errors import (
    ForbiddenTarget as ForbiddenTarget,
)
from quintain.errors import (
    GatewayUnavailable as GatewayUnavailable,
)
from quintain.errors import (
    InternalFault as InternalFault,
)
from quintain.errors import (
    NoAnswer as NoAnswer,
)
from quintain.errors import (
    Overloaded as Overloaded,
)
from quintain.errors import (
    PayloadTooLarge as PayloadTooLarge,
)
from quintain.errors import (
    ProviderFailed as ProviderFailed,
)
from quintain.errors import (
    QueueFull as QueueFull,
)
from quintain.errors import (
    QuintainError as QuintainError,
)
from quintain.errors import (
    Rejected as Rejected,
)
from quintain.errors import (
    ReplyExpired as ReplyExpired,
)
from quintain.errors import (
    ReplyTooLarge as ReplyTooLarge,
)
from quintain.errors import (
    RequestConflict as RequestConflict,
)
from quintain.errors import (
    TargetUnavailable as TargetUnavailable,
)
from quintain.errors import (
    Throttled as Throttled,
)
from quintain.errors import (
    TimedOut as TimedOut,
)
from quintain.errors import (
    Unauthorized as Unauthorized,
)
from quintain.errors import (
    UnknownTarget as UnknownTarget,
)
from quintain.errors import (
    Unroutable as Unroutable,
)
from quintain.errors import (
    WorkerLost as WorkerLost,
)
from quintain.graders import (
    Case as Case,
)
from quintain.graders import (
    Grader as Grader,
)
from quintain.graders import (
    GraderInput as GraderInput,
)
from quintain.graders import (
    grader as grader,
)
from quintain.target import (
    ConfigSpec as ConfigSpec,
)
from quintain.target import (
    Controllable as Controllable,
)
from quintain.target import (
    ControllableInjection as ControllableInjection,
)
from quintain.target import (
    ControllableNoInjection as ControllableNoInjection,
)
from quintain.target import (
    ControllablePostCallEvent as ControllablePostCallEvent,
)
from quintain.target import (
    ControllablePreCallEvent as ControllablePreCallEvent,
)
from quintain.target import (
    Event as Event,
)
from quintain.target import (
    EventResponse as EventResponse,
)
from quintain.target import (
    Observable as Observable,
)
from quintain.target import (
    ObservableEvent as ObservableEvent,
)
from quintain.target import (
    ObservableValue as ObservableValue,
)
from quintain.target import (
    QueryParam as QueryParam,
)
from quintain.target import (
    QuerySpec as QuerySpec,
)
from quintain.target import (
    Scope as Scope,
)
from quintain.target import (
    SecurityDomain as SecurityDomain,
)
from quintain.target import (
    SecurityDomainTag as SecurityDomainTag,
)
from quintain.target import (
    Target as Target,
)
from quintain.target import (
    scope_includes as scope_includes,
)
from quintain_runner.evaluation import (
    EvaluationResult as EvaluationResult,
)
from quintain_runner.evaluation import (
    evaluate as evaluate,
)
from quintain_runner.evaluation import (
    run as run,
)
