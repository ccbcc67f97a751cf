"""What is logged of a broker connection: a line when it is lost, a line when it is back, and nothing of any message.

The libraries below log whole frames and messages, with bodies and tokens, and print a traceback for each lost
connection.
"""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

#: The loggers of the libraries, with all loggers below them.
LIBRARY_LOGGERS = ("aio_pika", "aiormq", "pamqp")

#: A logger that the library creates only when it uses it.
_LATE_LOGGER = "aiormq.connection.marshall"

#: Messages of the libraries that keep their level, and their text without values.
_KEPT_MESSAGES = {
    "Connection %r was blocked by: %r": "The broker has blocked publishing: it is short of memory or disk",
    "Connection %r was unblocked": "The broker accepts messages again",
}


class _ValueFilter(logging.Filter):
    """Takes the values and the traceback out of each record, and lowers its level to DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        kept_text = _KEPT_MESSAGES.get(str(record.msg))
        if kept_text is None:
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        record.msg = str(record.msg) if kept_text is None else kept_text
        record.args, record.exc_info, record.exc_text, record.stack_info = (), None, None, None
        return logging.getLogger(record.name).isEnabledFor(record.levelno)


_VALUE_FILTER = _ValueFilter()


def install_value_filter() -> None:
    """Keep values, and with them bodies and tokens, out of what the libraries log at any level.

    Only the constant text of a record is left, at DEBUG level. This affects the whole process; calling it again has no
    effect but on loggers that are new.
    """
    prefixes = tuple(f"{name}." for name in LIBRARY_LOGGERS)
    children = [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]
    for name in {*LIBRARY_LOGGERS, _LATE_LOGGER, *children}:
        logging.getLogger(name).addFilter(_VALUE_FILTER)


class OutageLog:
    """Logs one line when the first connection of a bus is lost, and one when none of them is lost any more."""

    def __init__(self, address: str, name: str) -> None:
        self._address, self._name = address, name
        self._lost: set[object] = set()
        self._began_at = 0.0

    def lost(self, connection: object) -> None:
        """Record that a connection was lost."""
        if not self._lost:
            self._began_at = time.monotonic()
            log.warning("%s: the connection to the broker at %s was lost; connecting again", self._name, self._address)
        self._lost.add(connection)

    def restored(self, connection: object) -> None:
        """Record that a connection is open."""
        if connection not in self._lost:
            return
        self._lost.discard(connection)
        if not self._lost:
            seconds = time.monotonic() - self._began_at
            log.warning("%s: connected to the broker again after %.1f s", self._name, seconds)
