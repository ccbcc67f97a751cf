"""A hosted target's log records, on their way to its controller's log."""

from __future__ import annotations

import logging

from quintain.contracts.hosted import LogLine
from quintain.contracts.text import whole
from quintain_host.running import current_run

#: The longest text of one record, in characters.
MOST_TEXT = 4_000


class RunLog(logging.Handler):
    """Sends what is logged in a run's context along with what the run says; everything else is the host's own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say the record, where a run is speaking."""
        run = current_run.get()
        if run is None or record.name.startswith("quintain"):
            return
        try:
            text = whole(self.format(record)[:MOST_TEXT])
        except Exception:
            # A record that cannot be formatted is that record's loss, and logging's to report.
            self.handleError(record)
            return
        run.log(LogLine(logger=record.name, level=record.levelno, text=text, at=record.created))
