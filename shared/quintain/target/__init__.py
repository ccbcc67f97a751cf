"""Targets under test: superred's published `Target` interface with types of our own, so superred is not required.

A target is the AI system under test. A controller configures it, runs it, answers its events and queries it afterwards.
`quintain_host` hosts targets; `quintain.remote` drives them from another machine. Classes written for superred work
unchanged, because class and field names are the same.
"""

from quintain.target.interface import Target
from quintain.target.types import (
    SESSION_SLOT,
    ConfigSpec,
    Controllable,
    ControllableInjection,
    ControllableNoInjection,
    ControllablePostCallEvent,
    ControllablePreCallEvent,
    Event,
    EventHandler,
    EventResponse,
    EventResponseHandler,
    Observable,
    ObservableEvent,
    ObservableValue,
    QueryParam,
    QuerySpec,
    Scope,
    SecurityDomain,
    SecurityDomainTag,
    scope_includes,
)

__all__ = [
    "SESSION_SLOT",
    "ConfigSpec",
    "Controllable",
    "ControllableInjection",
    "ControllableNoInjection",
    "ControllablePostCallEvent",
    "ControllablePreCallEvent",
    "Event",
    "EventHandler",
    "EventResponse",
    "EventResponseHandler",
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
]
