"""What the pages of trajectories show: the runs of hosted targets, and one run in two lanes. No I/O.

A trajectory is read line by line from a file that a target and a controller filled with their texts, that may grow, and
that may end anywhere. Whatever it holds, a page can be made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from quintain.contracts.remote_target import TrajectoryLine, TrajectoryStart
from quintain_view.text import ShownText, one_line, shown
from quintain_view.timeline import NamedText, Step, StepReply, seconds

STEPS_PER_PAGE = 200


class RunState(StrEnum):
    """How a recorded run is: ``STOPPED`` is one whose record has no end, and no writer."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"


STATE_NOTES = {
    RunState.RUNNING: "",
    RunState.ENDED: "",
    RunState.FAILED: "",
    RunState.STOPPED: "The record has no end: its controller ended before the run did, or could not write further.",
}


@dataclass(frozen=True, slots=True)
class TrajectoryRecord:
    """A file of a trajectory as far as it could be read; ``unreadable`` counts lines that are none."""

    name: str
    start: TrajectoryStart | None
    lines: Sequence[TrajectoryLine]
    is_written: bool
    unreadable: int = 0

    @property
    def state(self) -> RunState:
        """How the run is."""
        if not self.lines or self.lines[-1].kind != "end":
            return RunState.RUNNING if self.is_written else RunState.STOPPED
        return RunState.FAILED if "error" in self.lines[-1].texts else RunState.ENDED


@dataclass(frozen=True, slots=True)
class TrajectoryEntry:
    """One line of the list of trajectories."""

    name: str
    target: str
    title: str
    started_at: str
    state: RunState
    error: str
    took: str
    size: int


@dataclass(frozen=True, slots=True)
class TrajectoryPage:
    """A run in two lanes.

    ``waiting`` are all events of the run that await a reply now, also those of other pages.
    """

    name: str
    target: str
    title: str
    started_at: str
    facts: list[tuple[str, str]]
    state: RunState
    error: ShownText | None
    took: str
    waiting: list[Step]
    steps: list[Step]
    unreadable: int
    skipped: int
    page: int
    pages: int


def trajectory_entry(record: TrajectoryRecord, size: int) -> TrajectoryEntry:
    """The line of a list for a record, of whose lines only the last is needed; ``size`` is its file's, in bytes."""
    last = record.lines[-1] if record.lines else None
    start = record.start
    return TrajectoryEntry(
        name=record.name,
        target=start.target if start else "-",
        title=one_line(start.title) if start else "",
        started_at=_shown_time(start),
        state=record.state,
        error=one_line(last.texts.get("error", "")) if last is not None and last.kind == "end" else "",
        took=seconds(last.ms) if last is not None and record.state is not RunState.RUNNING else "",
        size=size,
    )


def trajectory_page(
    record: TrajectoryRecord, now_ms: int, page: int | None = None, *, rows: int = STEPS_PER_PAGE
) -> TrajectoryPage:
    """A run in two lanes at this time, in milliseconds since the epoch, with so many ``rows`` on a page.

    Without ``page`` it is the last of a run that goes on, else the first.
    """
    start, last = record.start, record.lines[-1] if record.lines else None
    is_running = record.state is RunState.RUNNING
    steps = _steps(record.lines, _started_ms(start) if is_running else None, now_ms)
    pages = max(1, -(-len(steps) // rows))
    number = min(pages, page or (pages if is_running else 1))
    ended = last if last is not None and last.kind == "end" else None
    error = None if ended is None else ended.texts.get("error")
    return TrajectoryPage(
        name=record.name,
        target=start.target if start else "an unknown target",
        title=one_line(start.title) if start else "",
        started_at=_shown_time(start),
        facts=_facts(start, steps),
        state=record.state,
        error=None if error is None else shown(error),
        took="" if last is None or is_running else seconds(last.ms),
        waiting=[step for step in steps if step.waits_since is not None],
        steps=steps[(number - 1) * rows : number * rows],
        unreadable=record.unreadable,
        skipped=0 if ended is None else ended.skipped,
        page=number,
        pages=pages,
    )


def _steps(lines: Iterable[TrajectoryLine], started_ms: int | None, now_ms: int) -> list[Step]:
    """The rows in the order of their events; a reply stands beside its event."""
    lines = list(lines)
    sent = {line.seq for line in lines if line.kind == "send"}
    replies: dict[int | None, TrajectoryLine] = {}
    stray: set[int] = set()
    for line in lines:
        if line.kind == "reply":
            if line.seq in sent and line.seq not in replies:
                replies[line.seq] = line
            else:
                stray.add(id(line))
    waiting: set[int | None] = set()
    steps = []
    for line in lines:
        if line.kind == "send":
            steps.append(_sent_step(line, replies.get(line.seq), len(waiting), started_ms, now_ms))
            waiting.add(line.seq)
        elif line.kind == "reply":
            waiting.discard(line.seq)
            if id(line) in stray:
                steps.append(Step(kind="reply", at=seconds(line.ms), reply=_reply(line, line.ms)))
        elif line.kind in {"emit", "log", "limit"}:
            steps.append(_plain_step(line))
    return steps


def _sent_step(
    line: TrajectoryLine, reply: TrajectoryLine | None, beside: int, started_ms: int | None, now_ms: int
) -> Step:
    since = None if reply is not None or started_ms is None else started_ms + int(line.ms)
    return replace(
        _plain_step(line),
        beside=beside,
        reply=None if reply is None else _reply(reply, line.ms),
        waits_since=since,
        waited="" if since is None else f"{max(0, now_ms - since) // 1000} s",
    )


def _plain_step(line: TrajectoryLine) -> Step:
    return Step(
        kind=line.kind,
        at=seconds(line.ms),
        title=line.name or line.type,
        type=line.type,
        tag=_tag(line.tag),
        texts=_texts(line),
    )


def _reply(line: TrajectoryLine, sent_ms: float) -> StepReply:
    return StepReply(
        title=line.type or ("an error" if "error" in line.texts else "a reply"),
        took=seconds(max(0.0, line.ms - sent_ms)),
        texts=_texts(line),
        is_error="error" in line.texts,
    )


def _texts(line: TrajectoryLine) -> list[NamedText]:
    named = []
    for name, text in line.texts.items():
        whole = _plain(text) if name == "content" and name not in line.shortened else text
        left_out = max(0, line.shortened.get(name, 0) - len(text))
        named.append(NamedText(name, shown(whole), left_out))
    return named


def _plain(text: str) -> str:
    """The content of an observation, which is JSON text: a string as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def _tag(path: Sequence[str]) -> str:
    return "/".join(reversed(path))


def _facts(start: TrajectoryStart | None, steps: Sequence[Step]) -> list[tuple[str, str]]:
    events = sum(step.kind == "send" for step in steps)
    counts = [("events", f"{events:,}"), ("replies", f"{sum(step.reply is not None for step in steps):,}")]
    counts.append(("observations", f"{sum(step.kind == 'emit' for step in steps):,}"))
    known: Mapping[str, str] = {} if start is None else {"host": start.host_id, "lease": start.lease_id}
    return [*counts, *((name, value) for name, value in known.items() if value)]


def _started_ms(start: TrajectoryStart | None) -> int | None:
    try:
        return None if start is None else int(datetime.fromisoformat(start.started_at).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def _shown_time(start: TrajectoryStart | None) -> str:
    return "" if start is None else start.started_at[:19].replace("T", " ")
