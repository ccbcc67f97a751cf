"""The scope of a controller: what it may touch, and the filter before what answers the events of a run. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence

from quintain.errors import ConfigError
from quintain.target import (
    ControllableNoInjection,
    ControllablePostCallEvent,
    ControllablePreCallEvent,
    Event,
    EventResponse,
    EventResponseHandler,
    Scope,
    SecurityDomainTag,
    scope_includes,
)
from quintain.target.type_registry import tag_path

#: Tags by name, or as objects.
GivenScope = str | SecurityDomainTag | Iterable[str | SecurityDomainTag]

#: Answers the events of a run, as a coroutine function or a plain one; None leaves the value as it is.
OnEvent = Callable[[Event], Awaitable[EventResponse | None] | EventResponse | None]


def as_list(given: GivenScope) -> list[str | SecurityDomainTag]:
    """Return the tags of a scope one by one."""
    return [given] if isinstance(given, str | SecurityDomainTag) else list(given)


def find_scope(given: GivenScope, tags: Sequence[SecurityDomainTag], target: str) -> Scope:
    """Return those of the target's tags that are given by name or by path.

    Raises `ConfigError` for one that the target does not have: no event would be in it.
    """
    by_name = {tag.name: tag for tag in tags}
    by_path = {tuple(tag_path(tag)): tag for tag in tags}
    wanted = as_list(given)
    found = [by_name.get(tag) if isinstance(tag, str) else by_path.get(tuple(tag_path(tag))) for tag in wanted]
    unknown = [name_of(tag) for tag, own in zip(wanted, found, strict=True) if own is None]
    if unknown:
        raise ConfigError(
            f"Target {target!r} has no tag {', '.join(unknown)}, and no event would be in that scope: it has "
            f"{', '.join(name_of(tag) for tag in tags)}"
        )
    return frozenset(tag for tag in found if tag is not None)


def name_of(tag: str | SecurityDomainTag) -> str:
    """Return a tag's path, from its root on."""
    return tag if isinstance(tag, str) else "/".join(reversed(tag_path(tag)))


def require_response(event: Event, response: object) -> None:
    """Raise `TypeError` for what does not answer events of this class, and `ValueError` for another event's answer."""
    allowed = event.response_types or (EventResponse,)
    if not isinstance(response, allowed):
        names = ", ".join(each.__name__ for each in allowed)
        raise TypeError(f"{type(event).__name__} requires response of type {names}, got {type(response).__name__}")
    if response.event.event_id != event.event_id:
        raise ValueError(f"This {type(response).__name__} is for another event: pass the event that it answers")


def answer_in_scope(on_event: OnEvent | None, scope: Scope) -> EventResponseHandler:
    """Return what answers the events of a run: those of controllables outside the scope are never given to on_event."""

    async def answer(event: Event) -> EventResponse:
        response = None
        if on_event is not None and is_in_scope(event, scope):
            returned = on_event(event)
            response = await returned if inspect.isawaitable(returned) else returned
        if response is None:
            response = unchanged(event)
        require_response(event, response)
        return response

    return answer


def is_in_scope(event: Event, scope: Scope) -> bool:
    """Return whether the filter lets an event pass: only those of controllables are filtered, as superred does."""
    if isinstance(event, ControllablePreCallEvent | ControllablePostCallEvent):
        return scope_includes(scope, event.controllable.security_domain)
    return True


def unchanged(event: Event) -> EventResponse:
    """Return the response that leaves everything as it is."""
    if isinstance(event, ControllablePreCallEvent | ControllablePostCallEvent):
        return ControllableNoInjection(event=event, controllable=event.controllable)
    return EventResponse(event=event)
