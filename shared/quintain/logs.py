"""What a line of a log says beside its message: which call, session, run, target and trace it is about.

Ids are set once, where work begins (`about`), and every line written inside carries them, as text or as JSON. They may
come from strangers: whatever could begin a new line or steer a terminal is escaped. No token is an id, and no model's
text is one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from quintain.telemetry.spans import trace_id

#: An id is shown this long at most.
MOST_SHOWN = 128

#: The words of the ids, in the order in which they are shown, and their short forms in text.
_SHORT = {"requestId": "call", "sessionId": "session", "runId": "run", "target": "target", "traceId": "trace"}

_ids: ContextVar[dict[str, str] | None] = ContextVar("quintain_log_ids", default=None)


class _About(contextlib.AbstractContextManager[None]):
    """These ids, while inside."""

    __slots__ = ("_before", "_given")

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given

    def __enter__(self) -> None:
        self._before = _ids.set({**(_ids.get() or {}), **self._given})

    def __exit__(self, *_: object) -> None:
        _ids.reset(self._before)


def about(
    *,
    request_id: str | None = None,
    session_id: str | None = None,
    run_id: str | None = None,
    target: str | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Lines written inside are about this call; what is not given stays as it was."""
    given = {"requestId": request_id, "sessionId": session_id, "runId": run_id, "target": target}
    return _About({name: value for name, value in given.items() if value})


def ids() -> dict[str, str]:
    """The ids of what is under way, cut to a bounded length, the trace's where there is one."""
    found = {**(_ids.get() or {})}
    if (trace := trace_id()) is not None:
        found["traceId"] = trace
    return {name: found[name][:MOST_SHOWN] for name in _SHORT if name in found}


class JsonLines(logging.Formatter):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        line: dict[str, str] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **ids(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """A line for people: the message, then the ids. What follows a line of its own (a traceback) is indented, so that
    nothing in it can be taken for a line of the log."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        shown = " ".join(f"{_SHORT[name]}={escaped(value)}" for name, value in ids().items())
        words = (_moment(record), record.levelname, record.name, escaped(record.getMessage()), shown and f"[{shown}]")
        line = " ".join(filter(None, words))
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info)
        return "\n".join([line, *(f"  {escaped(part)}" for part in trace.split("\n"))])


def escaped(text: str) -> str:
    """The text on one line, with nothing in it that steers a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def set_up(level: int, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Log to stderr from this level on, and to nowhere else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
