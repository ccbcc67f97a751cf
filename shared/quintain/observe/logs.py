"""Log formatters, text and JSON, that add the ids of the current call, session, run, target and trace to each line.

Ids are set with `log_context` and apply to everything logged inside it. They may come from untrusted callers, so
control characters are escaped. Tokens and model output are never ids.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from quintain.contracts.credentials import mask_tokens
from quintain.observe.spans import current_trace_id

#: Maximum length of an id in the log.
MAX_ID_LENGTH = 128

#: The ids in the order in which they are shown, with their short names in the text format.
_TEXT_NAMES = {"requestId": "call", "sessionId": "session", "runId": "run", "target": "target", "traceId": "trace"}

log_ids: ContextVar[dict[str, str] | None] = ContextVar("quintain_log_ids", default=None)


class _LogContext(contextlib.AbstractContextManager[None]):
    """Adds ids to the log context of the current task."""

    __slots__ = ("_ids_to_add", "_token")

    def __init__(self, ids_to_add: dict[str, str]) -> None:
        self._ids_to_add = ids_to_add

    def __enter__(self) -> None:
        self._token = log_ids.set({**(log_ids.get() or {}), **self._ids_to_add})

    def __exit__(self, *_: object) -> None:
        log_ids.reset(self._token)


def log_context(
    *,
    request_id: str | None = None,
    session_id: str | None = None,
    run_id: str | None = None,
    target: str | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Context manager that adds these ids to all log lines written inside; ids not given stay unchanged."""
    named_ids = {"requestId": request_id, "sessionId": session_id, "runId": run_id, "target": target}
    return _LogContext({name: value for name, value in named_ids.items() if value})


def current_ids() -> dict[str, str]:
    """Return the current ids, shortened to `MAX_ID_LENGTH`, including the trace's id if there is one."""
    bound_ids = {**(log_ids.get() or {})}
    if (trace := current_trace_id()) is not None:
        bound_ids["traceId"] = trace
    return {name: bound_ids[name][:MAX_ID_LENGTH] for name in _TEXT_NAMES if name in bound_ids}


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        line: dict[str, str] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_tokens(record.getMessage()),
            **current_ids(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """Formats records for people: the message, then the ids in brackets.

    Further lines, such as a traceback, are indented, so that they cannot be mistaken for log lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines."""
        id_text = " ".join(
            f"{_TEXT_NAMES[name]}={escape_control_characters(value)}" for name, value in current_ids().items()
        )
        parts = (
            _timestamp(record),
            record.levelname,
            record.name,
            escape_control_characters(mask_tokens(record.getMessage())),
            id_text and f"[{id_text}]",
        )
        line = " ".join(filter(None, parts))
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info)
        return "\n".join([line, *(f"  {escape_control_characters(part)}" for part in trace.split("\n"))])


def escape_control_characters(text: str) -> str:
    """Escape everything that is not printable: line breaks and terminal control sequences."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def configure_logging(level: int, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Configure the root logger to log to stderr (or ``stream``) only, from this level on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@functools.lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
