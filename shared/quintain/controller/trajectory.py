"""The trajectory of one run: its events and responses in order, what of it a scope may see, and both as JSON. No I/O.

`Trajectory` and `FilteredTrajectory` are superred's. Both may be used from any thread.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

from quintain.target import Event, EventResponse, EventResponseHandler, Scope, SecurityDomainTag, scope_includes
from quintain.target.type_registry import to_json_text

#: What a trajectory consists of.
TrajectoryItem = Event | EventResponse

#: `FilteredTrajectory.show` cuts a text to so many characters.
MAX_SHOWN_CHARACTERS = 2000


def get_domain(item: object) -> SecurityDomainTag | None:
    """Return the tag of an event, or of the event that a response answers; None for anything else.

    Example::

        get_domain(response) is response.event.security_domain  # True
    """
    event = item.event if isinstance(item, EventResponse) else item
    return event.security_domain if isinstance(event, Event) else None


class FilteredTrajectory:
    """The items of a run that a scope may see, for reading; it has no way to the other ones.

    Example::

        for item in target.trajectory.filtered.drain():
            ...
    """

    __slots__ = ("_drained", "_items", "_lock")

    def __init__(self) -> None:
        self._items: list[TrajectoryItem] = []
        self._drained, self._lock = 0, threading.Lock()

    def snapshot(self) -> list[TrajectoryItem]:
        """Return all items so far.

        Example::

            events = [item for item in trajectory.snapshot() if isinstance(item, quintain.Event)]
        """
        with self._lock:
            return list(self._items)

    def drain(self) -> list[TrajectoryItem]:
        """Return the items since the last `drain`.

        Example::

            new_items = trajectory.drain()
        """
        with self._lock:
            new_items, self._drained = self._items[self._drained :], len(self._items)
            return new_items

    def to_json(self) -> str:
        """Return the items as a JSON array, with the fields of superred's files and the ``event_id`` of each response.

        Example::

            Path("trajectory.json").write_text(trajectory.to_json())
        """
        return json.dumps([_to_fields(item) for item in self.snapshot()], indent=2)

    def show(self) -> None:
        """Print the items, each in one line: seconds since the first event, its tag, what it is about, and its texts.

        Example::

            (await target.run(on_event=attack)).show()
        """
        items = self.snapshot()
        begin = next((item.timestamp for item in items if isinstance(item, Event)), None)
        for item in items:
            event = item.event if isinstance(item, EventResponse) else item
            seconds = 0.0 if begin is None else (event.timestamp - begin).total_seconds()
            time = f"{seconds:8.2f} s" if isinstance(item, Event) else " " * 10
            print(time, _to_line(item))  # noqa: T201 -- for a notebook or a terminal

    def _push(self, item: TrajectoryItem) -> None:
        with self._lock:
            self._items.append(item)


class Trajectory(FilteredTrajectory):
    """All items of a run; with ``filtered_scope`` also `filtered`, what that scope may see of them.

    Example::

        trajectory = await target.run(on_event=attack)
        trajectory.show()
    """

    __slots__ = ("_is_closed", "_view")

    def __init__(self, filtered_scope: Scope | None = None) -> None:
        super().__init__()
        self._is_closed = False
        self._view = None if filtered_scope is None else (filtered_scope, FilteredTrajectory())

    @property
    def filtered(self) -> FilteredTrajectory:
        """What the scope may see. Raises `RuntimeError` for a trajectory without one."""
        if self._view is None:
            raise RuntimeError("This trajectory has no filtered view: it was made without filtered_scope")
        return self._view[1]

    def emit(self, item: TrajectoryItem) -> None:
        """Add an item. Raises `RuntimeError` after `close`, and `ValueError` for an item without a tag.

        Example::

            trajectory.emit(ObservableEvent(observable=transcript, content="..."))
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("Cannot emit to a closed trajectory")
            domain = get_domain(item)
            if domain is None:
                raise ValueError(
                    f"{type(item).__name__}: without a security_domain it is in no trajectory: give it a tag"
                )
            self._items.append(item)
            if self._view is not None and scope_includes(self._view[0], domain):
                self._view[1]._push(item)  # noqa: SLF001 -- of this module

    def close(self) -> None:
        """Take no further item.

        Example::

            trajectory.close()
        """
        with self._lock:
            self._is_closed = True

    def recording(self, send_event: EventResponseHandler) -> EventResponseHandler:
        """Return a handler that adds each event before ``send_event`` is asked, and then its response.

        Example::

            await target.run(trajectory.emit, trajectory.recording(send_event))
        """

        async def record(event: Event) -> EventResponse:
            self.emit(event)
            response = await send_event(event)
            self.emit(response)
            return response

        return record


def _to_fields(item: TrajectoryItem) -> dict[str, Any]:
    event = item.event if isinstance(item, EventResponse) else item
    fields: dict[str, Any] = {
        "kind": "event" if item is event else "response",
        "type": type(item).__name__,
        "event_id": event.event_id,
    }
    if item is event:
        tag = event.security_domain
        fields |= {"timestamp": event.timestamp.isoformat(), "security_domain": None if tag is None else tag.name}
    for field in dataclasses.fields(item):
        if field.name not in {"event", "event_id", "timestamp", "security_domain"}:
            fields[field.name] = _field_value(item, field.name)
    return fields


def _field_value(item: TrajectoryItem, name: str) -> Any:
    value = getattr(item, name)
    if name in {"controllable", "observable"}:
        # A response names its controllable, as in superred's files.
        is_event = isinstance(item, Event)
        return {**vars(value), "security_domain": value.security_domain.name} if is_event else value.name
    # JSON's values as they are, others as their text.
    return json.loads(to_json_text(value))


def _to_line(item: TrajectoryItem) -> str:
    event = item.event if isinstance(item, EventResponse) else item
    about: Any = getattr(event, "controllable", None) or getattr(event, "observable", None)
    named = type(event).__name__ if about is None else about.name
    tag = event.security_domain
    head = f"[{'' if tag is None else tag.name}] {named}"
    if item is event:
        texts = [getattr(item, name) for name in ("request", "answer", "content") if hasattr(item, name)]
        return _printable(f"{head}: {' -> '.join(map(_to_text, texts))}")
    value = getattr(item, "value", None)
    return _printable(f"{head} <- {type(item).__name__}" + ("" if value is None else f": {_to_text(value)}"))


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else to_json_text(value)


def _printable(text: str) -> str:
    """One line that moves no cursor: what a target or a model wrote is data."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:MAX_SHOWN_CHARACTERS])
    left_out = len(text) - MAX_SHOWN_CHARACTERS
    return f"{shown}… ({left_out:,} characters more)" if left_out > 0 else shown
