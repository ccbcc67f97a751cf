"""Log formatters, text and JSON, that add the ids of the current call, session, run, target and trace to each line.

Ids are set with `log_context` and apply to everything logged inside it. They may come from untrusted callers, so
control characters are escaped. Tokens and model output are never ids.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from quintain.contracts.credentials import mask_tokens
from quintain.observe.spans import current_trace_id

#: Maximum length of an id in the log.
MAX_ID_LENGTH = 128

#: The ids in the order in which they are shown, with their short names in the text format.
_TEXT_NAMES = {
    "httpRequestId": "http",
    "requestId": "call",
    "sessionId": "session",
    "runId": "run",
    "target": "target",
    "traceId": "trace",
}

#: A line of stderr without an end is a record from so many bytes on.
_MAX_LINE_BYTES = 64 * 1024

log_ids: ContextVar[dict[str, str] | None] = ContextVar("quintain_log_ids", default=None)


class _LogContext(contextlib.AbstractContextManager[None]):
    """Adds ids to the log context of the current task: a generator as context manager takes half as long again."""

    __slots__ = ("_ids_to_add", "_token")

    def __init__(self, ids_to_add: dict[str, str]) -> None:
        self._ids_to_add = ids_to_add

    def __enter__(self) -> None:
        self._token = log_ids.set({**(log_ids.get() or {}), **self._ids_to_add})

    def __exit__(self, *_: object) -> None:
        log_ids.reset(self._token)


def log_context(
    *,
    http_request_id: str | None = None,
    request_id: str | None = None,
    session_id: str | None = None,
    run_id: str | None = None,
    target: str | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Context manager that adds these ids to all log lines written inside; ids not given stay unchanged."""
    values = (http_request_id, request_id, session_id, run_id, target)
    return _LogContext({name: value for name, value in zip(_TEXT_NAMES, values, strict=False) if value})


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
            line["exception"] = mask_tokens(self.formatException(record.exc_info))
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
        trace = mask_tokens(self.formatException(record.exc_info))
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


def log_stderr() -> None:
    """Log also what is written past the loggers, one record each: warnings, uncaught exceptions, lines of stderr."""
    log = logging.getLogger("stderr")
    # What else is written there has no level.
    log.setLevel(logging.DEBUG)
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda kind, error, _: log.critical("Uncaught %s", kind.__name__, exc_info=error)
    threading.excepthook = lambda raised: log.error("Uncaught in %s", raised.thread, exc_info=raised.exc_value)
    sys.unraisablehook = lambda raised: log.error("Ignored in %r", raised.object, exc_info=raised.exc_value)
    lines: Any = _LoggedLines(sys.stderr, log)
    sys.stderr = io.TextIOWrapper(lines, encoding="utf-8", errors="backslashreplace", write_through=True)


class _LoggedLines(io.RawIOBase):
    """A stream whose lines become log records; one that is a JSON object, such as a child process's, stays as it is."""

    def __init__(self, stream: TextIO, log: logging.Logger) -> None:
        self._stream, self._log, self._rest, self._lock = stream, log, b"", threading.RLock()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
            if len(self._rest) > _MAX_LINE_BYTES:
                lines, self._rest = [*lines, self._rest], b""
            for line in filter(bytes.strip, lines):
                self._write_line(line.decode(errors="backslashreplace"))
        return len(data)

    def _write_line(self, line: str) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(json.loads(line), dict):
                self._stream.write(f"{line}\n")
                self._stream.flush()
                return
        self._log.info("%s", line)

    def flush(self) -> None:
        self.write(b"\n")


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@functools.lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
