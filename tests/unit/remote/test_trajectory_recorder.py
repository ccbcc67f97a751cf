"""What is recorded of a run on a host: every event with its reply, however the run ends."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from quintain.contracts.hosting import LogLine, SendEvent
from quintain.contracts.remote_target import (
    MAX_RECORDED_CHARACTERS,
    MAX_TRAJECTORY_BYTES,
    TRAJECTORY_FOLDER,
    TrajectoryStart,
    WireEvent,
    WireResponse,
)
from quintain.errors import ConfigError
from quintain.remote.connection_thread import InlineExecutor
from quintain.remote.run_driver import RunDriver
from quintain.remote.trajectory_recorder import TrajectoryFolder, TrajectoryRecorder
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES
from quintain_view.trajectory_files import read_trajectory, trajectory_names
from quintain_view.trajectory_page import RunState, TrajectoryRecord
from support.memory_host import HostUnderTest, run_host, target_factory
from support.target_placements import Controller, TargetScript


def read_only_one(results: Path) -> TrajectoryRecord:
    (name,) = trajectory_names(results)
    return read_trajectory(results, name)


async def record(hosted: HostUnderTest, folder: TrajectoryFolder, controller: Controller) -> None:
    lease = await hosted.lease()
    with folder.open(lease) as recorder:
        codec, executor = Codec(QUINTAIN_TYPES), InlineExecutor()
        await RunDriver(executor, lease, codec, controller.emit, controller.send, recorder=recorder).run()


async def two_branches(target: Any, emit: Any, send: Any) -> None:
    first = asyncio.create_task(send(target.request_event("first")))
    second = await send(target.request_event("second"))
    emit(target.observation_event({"second": second.value}))
    await first


async def test_events_and_replies_are_recorded_while_the_run_goes_on(tmp_path: Path) -> None:
    states: list[RunState] = []
    are_both_asked = asyncio.Event()

    async def answer(event: Any) -> Any:
        states.append(read_only_one(tmp_path).state)
        if len(states) == 2:
            are_both_asked.set()
        await are_both_asked.wait()
        return controller.injection(event)

    controller = Controller(QUINTAIN_TYPES, answer)
    async with run_host(target_factory(two_branches)) as hosted:
        await record(hosted, TrajectoryFolder.create(tmp_path, "task 1"), controller)
    found = read_only_one(tmp_path)
    assert states == [RunState.RUNNING, RunState.RUNNING]
    assert (found.state, found.unreadable) == (RunState.ENDED, 0)
    assert found.start is not None
    assert (found.start.target, found.start.title) == ("it", "task 1")
    assert [line.kind for line in found.lines[:2]] == ["send", "send"]
    sent = {line.seq: line.texts["request"] for line in found.lines if line.kind == "send"}
    replied = {line.seq: line.texts["value"] for line in found.lines if line.kind == "reply"}
    assert {sent[seq]: value for seq, value in replied.items() if seq is not None} == {
        "first": "FIRST",
        "second": "SECOND",
    }
    (observed,) = [line for line in found.lines if line.kind == "emit"]
    assert observed.texts == {"content": '{"second": "SECOND"}'}
    assert [line.ms for line in found.lines] == sorted(line.ms for line in found.lines)
    (path,) = (tmp_path / TRAJECTORY_FOLDER).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def fails(target: Any, emit: Any, send: Any) -> None:
    raise ValueError("it broke")


async def waits(target: Any, emit: Any, send: Any) -> None:
    await send(target.request_event("for ever"))


async def refuse(event: Any) -> Any:
    raise RuntimeError("no answer to this")


@pytest.mark.parametrize(
    ("script", "answer", "error", "kinds"),
    [
        (fails, None, "ValueError: it broke", ["end"]),
        (waits, refuse, "RuntimeError: no answer to this", ["send", "reply", "end"]),
    ],
    ids=["the target raises", "the controller raises"],
)
async def test_a_run_that_fails_is_recorded_with_its_exception(
    tmp_path: Path, script: TargetScript, answer: Any, error: str, kinds: list[str]
) -> None:
    async with run_host(target_factory(script)) as hosted:
        with pytest.raises((ValueError, RuntimeError)):
            await record(hosted, TrajectoryFolder.create(tmp_path), Controller(QUINTAIN_TYPES, answer))
    found = read_only_one(tmp_path)
    assert (found.state, found.lines[-1].texts["error"]) == (RunState.FAILED, error)
    assert [line.kind for line in found.lines] == kinds


async def test_a_cancelled_run_has_an_end_and_its_open_event_no_reply(tmp_path: Path) -> None:
    is_asked = asyncio.Event()

    async def answer(event: Any) -> Any:
        is_asked.set()
        await asyncio.Event().wait()

    async with run_host(target_factory(waits)) as hosted:
        running = asyncio.create_task(
            record(hosted, TrajectoryFolder.create(tmp_path), Controller(QUINTAIN_TYPES, answer))
        )
        await is_asked.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    found = read_only_one(tmp_path)
    assert [line.kind for line in found.lines] == ["send", "end"]
    assert found.lines[-1].texts["error"].startswith("CancelledError")


def sent_item(seq: int, request: str, kind: str = "Event") -> SendEvent:
    return SendEvent(event=WireEvent(kind=kind, event_id=str(seq), at=0.0, request=request))


def recorder_in(results: Path) -> TrajectoryRecorder:
    path = TrajectoryFolder.create(results).path / "one.jsonl"
    return TrajectoryRecorder(path, TrajectoryStart(target="bot", started_at="2026-01-01T00:00:00+00:00"))


def test_long_texts_are_shortened_and_say_so(tmp_path: Path) -> None:
    long = "x" * (MAX_RECORDED_CHARACTERS + 5)
    with recorder_in(tmp_path) as recorder:
        recorder.record_item(1, sent_item(1, long, kind=long))
        recorder.record_response(1, WireResponse(kind="K", value=long, extra={"field": f'"{long}"'}))
        recorder.record_item(2, LogLine(logger="bot", level=30, text="half \ud83d", at=0))
    event, reply, logged, _ = read_only_one(tmp_path).lines
    assert (len(event.texts["request"]), event.shortened) == (MAX_RECORDED_CHARACTERS, {"request": len(long)})
    assert len(event.type) < 1_000
    assert reply.shortened.keys() == {"value", "extra"}
    assert (logged.type, logged.name, logged.texts["text"]) == ("WARNING", "bot", "half \ufffd")


def test_a_full_file_says_how_much_is_missing_and_how_the_run_ended(tmp_path: Path) -> None:
    text = "x" * MAX_RECORDED_CHARACTERS
    wanted = MAX_TRAJECTORY_BYTES // MAX_RECORDED_CHARACTERS + 3
    with recorder_in(tmp_path) as recorder:
        for seq in range(1, wanted + 1):
            recorder.record_item(seq, sent_item(seq, text))
    found = read_only_one(tmp_path)
    assert [line.kind for line in found.lines[-2:]] == ["limit", "end"]
    assert found.lines[-1].skipped + len(found.lines) - 2 == wanted
    assert found.lines[-1].skipped >= 1
    assert (tmp_path / TRAJECTORY_FOLDER / "one.jsonl").stat().st_size < MAX_TRAJECTORY_BYTES + 1_000


def test_a_folder_that_cannot_be_written_is_named_at_the_start_and_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        TrajectoryFolder.create(tmp_path / "file")
    gone = TrajectoryFolder(tmp_path / "gone").path / "one.jsonl"
    with TrajectoryRecorder(gone, TrajectoryStart(target="bot", started_at="")) as recorder:
        recorder.record_item(1, sent_item(1, "request"))
    (warning,) = caplog.records
    assert str(gone) in warning.getMessage()


def test_a_record_whose_writer_is_gone_is_not_said_to_go_on(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.record_item(1, sent_item(1, "request"))
    assert read_only_one(tmp_path).state is RunState.RUNNING
    (path,) = (tmp_path / TRAJECTORY_FOLDER).iterdir()
    (tmp_path / "copy" / TRAJECTORY_FOLDER).mkdir(parents=True)
    # As a process leaves it that was killed: without an end, and without a lock.
    (tmp_path / "copy" / TRAJECTORY_FOLDER / path.name).write_bytes(path.read_bytes())
    assert read_only_one(tmp_path / "copy").state is RunState.STOPPED
    with recorder:
        pass
    assert read_only_one(tmp_path).state is RunState.ENDED
