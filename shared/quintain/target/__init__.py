"""Targets under test: the interface that superred published, with types of our own, so that superred is not needed.

A Target is the AI system under test. Whoever attacks or evaluates it configures it, runs it, answers the events it
sends and asks it afterwards; `quintain_host` hosts one, and `quintain.remote` drives it from another machine. A class
written for superred is hosted as it is: everything here goes by the names of classes and fields, which are the same.
"""

from quintain.target.domain import Scope, SecurityDomain, SecurityDomainTag, scope_includes
from quintain.target.events import (
    ControllableInjection,
    ControllableNoInjection,
    ControllablePostCallEvent,
    ControllablePreCallEvent,
    Event,
    EventHandler,
    EventResponse,
    EventResponseHandler,
    ObservableEvent,
)
from quintain.target.interface import Target
from quintain.target.surface import (
    SESSION_SLOT,
    ConfigSpec,
    Controllable,
    Observable,
    ObservableValue,
    QueryParam,
    QuerySpec,
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
