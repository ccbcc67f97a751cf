"""Events of a running target: one-way observations, and events that await a response.

An event has its own id and timestamp; a response refers to the event it answers. Timestamps are naive local time, as in
superred.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from quintain.target.specs import Controllable, Observable, SecurityDomainTag


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 -- superred's events carry naive local time, and files compare them


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base class of everything that happens in a run; ``response_types`` are the allowed responses, empty for any.

    Example::

        @dataclass(frozen=True, kw_only=True)
        class FileWritten(Event):
            path: str
    """

    response_types: ClassVar[tuple[type[EventResponse], ...]] = ()

    event_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    timestamp: datetime = field(default_factory=_now)
    security_domain: SecurityDomainTag | None = None


@dataclass(frozen=True, kw_only=True)
class EventResponse:
    """Base class of responses; ``event`` is the event that is answered.

    Example::

        async def send_event(event):
            return EventResponse(event=event)
    """

    event: Event


@dataclass(frozen=True, kw_only=True)
class ControllableInjection(EventResponse):
    """The response that replaces the controllable's value.

    Example::

        ControllableInjection(event=event, controllable=event.controllable, value="injected text")
    """

    controllable: Controllable
    value: str


@dataclass(frozen=True, kw_only=True)
class ControllableNoInjection(EventResponse):
    """The response that leaves the controllable's value unchanged.

    Example::

        ControllableNoInjection(event=event, controllable=event.controllable)
    """

    controllable: Controllable


@dataclass(frozen=True, kw_only=True)
class ObservableEvent(Event):
    """An observation, which is not answered; its security domain defaults to the observable's.

    Example::

        emit(ObservableEvent(observable=transcript, content="..."))
    """

    observable: Observable
    content: Any

    def __post_init__(self) -> None:
        if self.security_domain is None:
            object.__setattr__(self, "security_domain", self.observable.security_domain)


@dataclass(frozen=True, kw_only=True)
class ControllablePreCallEvent(Event):
    """A controllable is about to be called with ``request``, which the response may replace.

    Example::

        response = await send_event(ControllablePreCallEvent(controllable=search, request="weather"))
    """

    response_types = (ControllableInjection, ControllableNoInjection)

    controllable: Controllable
    request: str

    def __post_init__(self) -> None:
        if self.security_domain is None:
            object.__setattr__(self, "security_domain", self.controllable.security_domain)


@dataclass(frozen=True, kw_only=True)
class ControllablePostCallEvent(Event):
    """A controllable was called with ``request`` and returned ``answer``, which the response may replace.

    Example::

        event = ControllablePostCallEvent(controllable=search, request="weather", answer="sunny")
        response = await send_event(event)
    """

    response_types = (ControllableInjection, ControllableNoInjection)

    controllable: Controllable
    request: str
    answer: str

    def __post_init__(self) -> None:
        if self.security_domain is None:
            object.__setattr__(self, "security_domain", self.controllable.security_domain)


#: Records an event without a response. Raises `ValueError` for an event without a security domain, and `RuntimeError`
#: after the run has ended.
EventHandler = Callable[[Event], None]

#: Sends an event and waits for its response.
EventResponseHandler = Callable[[Event], Awaitable[EventResponse]]
