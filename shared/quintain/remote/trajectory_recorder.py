"""Records runs of hosted targets on the controller's side: a file of JSON lines for each run, flushed line by line.

What a target or a controller sends is data: it is shortened, written as JSON, and never part of a path.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from quintain.contracts.hosting import EmitEvent, LeaseResult, LogLine, SendEvent
from quintain.contracts.remote_target import (
    MAX_NAME_CHARACTERS,
    MAX_RECORDED_CHARACTERS,
    MAX_TRAJECTORY_BYTES,
    TRAJECTORY_FOLDER,
    TRAJECTORY_SUFFIX,
    TrajectoryLine,
    TrajectoryStart,
    WireResponse,
)
from quintain.contracts.values import replace_surrogates
from quintain.errors import ConfigError
from quintain.remote.lease import RemoteLease
from quintain.target.type_registry import safe_str

log = logging.getLogger(__name__)

#: So many parts of a tag's path are recorded.
MAX_TAG_PARTS = 20


@dataclass(frozen=True, slots=True)
class TrajectoryFolder:
    """Where runs are recorded: ``trajectories/`` in a results folder. ``title`` says in each file what was run."""

    path: Path
    title: str = ""

    @staticmethod
    def create(results: Path | str, title: str = "") -> TrajectoryFolder:
        """Create the folder in a results folder. Raises `ConfigError` if it cannot be created."""
        path = Path(results) / TRAJECTORY_FOLDER
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: trajectories cannot be recorded there ({error.strerror}); name a folder that can be written"
            ) from None
        return TrajectoryFolder(path, title)

    def open(self, lease: RemoteLease) -> TrajectoryRecorder:
        """Open the file of a new run on this lease."""
        started = datetime.now(UTC)
        start = TrajectoryStart(
            target=lease.name,
            title=_shortened(self.title, MAX_NAME_CHARACTERS),
            host_id=lease.host_id,
            lease_id=lease.lease_id,
            started_at=started.isoformat(timespec="milliseconds"),
        )
        name = f"{started:%Y%m%dT%H%M%S.%f}-{secrets.token_hex(4)}{TRAJECTORY_SUFFIX}"
        return TrajectoryRecorder(self.path / name, start)


class TrajectoryRecorder:
    """Writes the file of one run; a context manager around the run, which writes how it ended.

    Nothing is raised: a file that cannot be written is logged, and its run goes on without it. While it is open its
    writer holds a lock on it, which says to readers that the run goes on.

    Example::

        with TrajectoryFolder.create("runs/attack").open(lease) as recorder:
            await RunDriver(..., recorder=recorder).run()
    """

    def __init__(self, path: Path, start: TrajectoryStart) -> None:
        self._path, self._began_at = path, time.monotonic()
        self._bytes = self._skipped = 0
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError as error:
            self._fail(error.strerror)
        self._write(start)

    def __enter__(self) -> TrajectoryRecorder:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        texts = {} if error is None else {"error": f"{type(error).__name__}: {safe_str(error)}"}
        self._write_line("end", texts, skipped=self._skipped)
        self._close()

    def record_item(self, number: int, item: EmitEvent | SendEvent | LogLine | LeaseResult) -> None:
        """Record an event or a log record of the target; the end is recorded when the context is left."""
        if isinstance(item, EmitEvent | SendEvent):
            event, named = item.event, item.event.controllable or item.event.observable
            texts = {name: getattr(event, name) for name in ("request", "answer", "content")}
            self._write_line(
                item.type,
                {**texts, "extra": _extra_text(event.extra)},
                seq=number,
                type_name=event.kind,
                name="" if named is None else named.name,
                tag=event.domain or (),
            )
        elif isinstance(item, LogLine):
            level = logging.getLevelName(item.level)
            self._write_line("log", {"text": item.text}, type_name=level, name=item.logger)

    def record_response(self, seq: int, response: WireResponse) -> None:
        """Record the controller's reply to the event with this number."""
        failure, named = response.failure, response.controllable
        texts = {"value": response.value, "extra": _extra_text(response.extra)}
        if failure is not None:
            texts["error"] = f"{failure.type}: {failure.message}"
        name = "" if named is None else named.name
        self._write_line("reply", texts, seq=seq, type_name=response.kind, name=name)

    def _write_line(
        self,
        kind: Any,
        texts: Mapping[str, str | None],
        *,
        type_name: str = "",
        name: str = "",
        tag: Sequence[str] = (),
        **numbers: int,
    ) -> None:
        given = {key: text for key, text in texts.items() if text is not None}
        line = TrajectoryLine(
            kind=kind,
            ms=round(1000 * (time.monotonic() - self._began_at), 1),
            type=_shortened(type_name, MAX_NAME_CHARACTERS),
            name=_shortened(name, MAX_NAME_CHARACTERS),
            tag=[_shortened(part, MAX_NAME_CHARACTERS) for part in tag[:MAX_TAG_PARTS]],
            texts={key: _shortened(text, MAX_RECORDED_CHARACTERS) for key, text in given.items()},
            shortened={key: len(text) for key, text in given.items() if len(text) > MAX_RECORDED_CHARACTERS},
            **numbers,
        )
        self._write(line)

    def _write(self, line: TrajectoryStart | TrajectoryLine) -> None:
        if self._descriptor is None:
            return
        data = line.to_wire() + b"\n"
        if isinstance(line, TrajectoryLine) and line.kind != "end" and self._bytes + len(data) > MAX_TRAJECTORY_BYTES:
            self._skipped += 1
            if self._skipped > 1:
                return
            data = TrajectoryLine(kind="limit", ms=line.ms).to_wire() + b"\n"
        self._bytes += len(data)
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._fail(error.strerror)
            return
        if written != len(data):
            self._fail("only a part of a line was written")

    def _fail(self, reason: str | None) -> None:
        log.warning("%s: the trajectory is not recorded further (%s)", self._path, reason)
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _extra_text(extra: Mapping[str, str] | None) -> str | None:
    """The fields of a class of the application's own, each of which is JSON text."""
    return None if not extra else "\n".join(f"{json.dumps(name)}: {text}" for name, text in extra.items())


def _shortened(text: str, max_characters: int) -> str:
    return replace_surrogates(text[:max_characters])
