"""What a target declares before a run, and the events of a run: the types of the ``Target`` interface.

A security domain is a forest of tags over everything that the target exposes. A tag includes its descendants. Tags
are compared by identity, as in superred, so a decoder must return the tags that its side already holds
(`quintain.target.type_registry`).

An event has its own id and timestamp; a response refers to the event it answers. Timestamps are naive local time, as in
superred.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from typing import Any, ClassVar

#: The configuration slot of a target that calls models: it receives the token of a child session.
SESSION_SLOT = "quintain_session"


@dataclass(frozen=True)
class Controllable:
    """A point where a value may be injected during a run; ``value_type`` is text, json, modifier or binary.

    Example::

        Controllable("search", user, "The search tool")
    """

    name: str
    security_domain: SecurityDomainTag
    description: str = ""
    value_type: str = "text"


@dataclass(frozen=True)
class Observable:
    """Something that can be observed; ``observable_type`` is text, code, config or json.

    Example::

        Observable("transcript", user, "The whole conversation")
    """

    name: str
    security_domain: SecurityDomainTag
    description: str = ""
    observable_type: str = "text"


@dataclass(frozen=True)
class ObservableValue:
    """An observable with its value, known before any run.

    Example::

        ObservableValue(Observable("system_prompt", user), "You are a helpful assistant.")
    """

    observable: Observable
    content: Any = None


@dataclass(frozen=True)
class ConfigSpec:
    """A configuration slot, set to a text before a run; ``description`` explains its format.

    Example::

        ConfigSpec("prompt", user, "The user's prompt, as plain text")
    """

    name: str
    security_domain: SecurityDomainTag
    description: str


@dataclass(frozen=True)
class QueryParam:
    """A parameter of a query; its value is text.

    Example::

        QueryParam("path", "The path of the file to read")
    """

    name: str
    description: str


@dataclass(frozen=True)
class QuerySpec:
    """A query that an evaluator asks after a run, answered with text; it may have side effects.

    Example::

        QuerySpec("read_file", "The content of a file", [QueryParam("path", "The path of the file")])
    """

    name: str
    description: str
    params: list[QueryParam] = field(default_factory=list)


@dataclass(frozen=True)
class SecurityDomainTag:
    """One trust boundary; ``parent`` is the enclosing one, None for a root.

    Example::

        user = SecurityDomainTag("user")
        profile = SecurityDomainTag("profile", parent=user)
    """

    name: str
    parent: SecurityDomainTag | None = None

    def includes(self, other: SecurityDomainTag) -> bool:
        """Return whether ``other`` is this tag or one of its descendants."""
        return any(tag is self for tag in ancestors(other))


def ancestors(tag: Any) -> Iterator[Any]:
    """Yield the tag, its parent, and so on up to the root; superred's, too."""
    current = tag
    while current is not None:
        yield current
        current = current.parent


class SecurityDomain:
    """The tags of one target, in the given order.

    Raises `ValueError` if two tags share a name, or if a tag's parent is missing.

    Example::

        domain = SecurityDomain([user, profile])
    """

    def __init__(self, tags: Sequence[SecurityDomainTag]) -> None:
        names = [tag.name for tag in tags]
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise ValueError(f"Two tags share a name: {', '.join(sorted(duplicates))}")
        for tag in tags:
            if tag.parent is not None and tag.parent.name not in names:
                raise ValueError(f"Tag {tag.name!r} lies in {tag.parent.name!r}, which is not in the domain")
        self._tags = tuple(tags)

    @property
    def tags(self) -> tuple[SecurityDomainTag, ...]:
        """All tags, in the given order."""
        return self._tags

    @property
    def roots(self) -> list[SecurityDomainTag]:
        """The tags without a parent."""
        return [tag for tag in self._tags if tag.parent is None]

    def distinct_combinations(self) -> list[frozenset[SecurityDomainTag]]:
        """Return every distinct scope, including the empty one: sets of tags of which none includes another.

        The number is exponential in the width of the forest.
        """
        return _combine(self._antichains(root) for root in self.roots)

    def _antichains(self, node: SecurityDomainTag) -> list[frozenset[SecurityDomainTag]]:
        children = [tag for tag in self._tags if tag.parent is not None and tag.parent.name == node.name]
        return [*_combine(self._antichains(child) for child in children), frozenset({node})]


def _combine(trees: Iterator[list[frozenset[SecurityDomainTag]]]) -> list[frozenset[SecurityDomainTag]]:
    return [frozenset().union(*combination) for combination in product(*trees)]


#: What an attacker may touch: everything included by one of these tags.
Scope = frozenset[SecurityDomainTag]


def scope_includes(scope: Scope, tag: SecurityDomainTag) -> bool:
    """Return whether one of the scope's tags includes this tag; an empty scope includes nothing.

    Example::

        scope_includes(frozenset({user}), profile)  # True
    """
    return any(scope_tag.includes(tag) for scope_tag in scope)


def local_now() -> datetime:
    """Return the current time as a naive local datetime, as superred uses it."""
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
    timestamp: datetime = field(default_factory=local_now)
    security_domain: SecurityDomainTag | None = None

    def __post_init__(self) -> None:
        """Lie where the controllable or the observable lies, unless a security domain is given."""
        point = getattr(self, "controllable", None) or getattr(self, "observable", None)
        if self.security_domain is None and point is not None:
            object.__setattr__(self, "security_domain", point.security_domain)


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


@dataclass(frozen=True, kw_only=True)
class ControllablePreCallEvent(Event):
    """A controllable is about to be called with ``request``, which the response may replace.

    Example::

        response = await send_event(ControllablePreCallEvent(controllable=search, request="weather"))
    """

    response_types = (ControllableInjection, ControllableNoInjection)

    controllable: Controllable
    request: str


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


#: Records an event without a response. Raises `ValueError` for an event without a security domain, and `RuntimeError`
#: after the run has ended.
EventHandler = Callable[[Event], None]

#: Sends an event and waits for its response.
EventResponseHandler = Callable[[Event], Awaitable[EventResponse]]
