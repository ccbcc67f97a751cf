"""Events of a running target: one-way observations, and events that await a response.

An event has its own id and timestamp; a response refers to the event it answers. Timestamps are naive local time, as
in superred.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from quintain.target.domain import SecurityDomainTag
from quintain.target.specs import Controllable, Observable


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 -- superred's events carry naive local time, and files compare them


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happens in a run. ``response_types`` are the classes that may answer it; none named: any."""

    response_types: ClassVar[tuple[type[EventResponse], ...]] = ()

    event_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    timestamp: datetime = field(default_factory=_now)
    security_domain: SecurityDomainTag | None = None


@dataclass(frozen=True, kw_only=True)
class EventResponse:
    """The answer to an event."""

    event: Event


@dataclass(frozen=True, kw_only=True)
class ControllableInjection(EventResponse):
    """Put this value in."""

    controllable: Controllable
    value: str


@dataclass(frozen=True, kw_only=True)
class ControllableNoInjection(EventResponse):
    """Go on with your own value."""

    controllable: Controllable


@dataclass(frozen=True, kw_only=True)
class ObservableEvent(Event):
    """Something was seen; nobody answers. Its domain is the observable's where it names none."""

    observable: Observable
    content: Any

    def __post_init__(self) -> None:
        if self.security_domain is None:
            object.__setattr__(self, "security_domain", self.observable.security_domain)


@dataclass(frozen=True, kw_only=True)
class ControllablePreCallEvent(Event):
    """A controllable point is reached, about to be called with ``request``."""

    response_types = (ControllableInjection, ControllableNoInjection)

    controllable: Controllable
    request: str

    def __post_init__(self) -> None:
        if self.security_domain is None:
            object.__setattr__(self, "security_domain", self.controllable.security_domain)


@dataclass(frozen=True, kw_only=True)
class ControllablePostCallEvent(Event):
    """A controllable point was called with ``request`` and gave ``answer``, which may be replaced."""

    response_types = (ControllableInjection, ControllableNoInjection)

    controllable: Controllable
    request: str
    answer: str

    def __post_init__(self) -> None:
        if self.security_domain is None:
            object.__setattr__(self, "security_domain", self.controllable.security_domain)


#: Records an event, one way; raises `ValueError` for one without a domain, `RuntimeError` once the run is over.
EventHandler = Callable[[Event], None]

#: Sends an event and waits for its response.
EventResponseHandler = Callable[[Event], Awaitable[EventResponse]]
