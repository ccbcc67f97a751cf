"""A program's processes: with the call they end, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest

from quintain.config import CommandTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import TimedOut
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Billing, Provider, ProviderAnswer, ProviderContext, ProviderFailure


@pytest.fixture(autouse=True)
def calls_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the calls' folders are made; every test leaves it empty."""
    temp = tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    return temp


def make_provider(folder: Path, command: list[str]) -> Provider:
    target = CommandTarget(provider="command", command=command)
    return build_provider("it", target, ProviderContext(folder, {"PATH": os.environ["PATH"]}))


def shell(script: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", script, "sh", *arguments]


async def answer_of(provider: Provider) -> ProviderAnswer:
    return await provider.answer(InvokeRequest(question="How are you?"), timeout_seconds=30)


#: Starts a child of its own, says both ids in a file, and waits for ever.
FAMILY = 'sleep 600 & echo "$$ $!" > "$1.new"; mv "$1.new" "$1"; wait'


async def ids_in(file: Path) -> list[int]:
    async with asyncio.timeout(30):
        while not file.exists():
            await asyncio.sleep(0.01)
    return [int(each) for each in file.read_text().split()]


async def wait_until_gone(process_id: int) -> None:
    """Return when no such process runs; a dead one that nobody has collected yet is gone too."""
    async with asyncio.timeout(30):
        while True:
            try:
                state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return
            if state == "Z":
                return
            await asyncio.sleep(0.01)


async def test_a_deadline_kills_the_whole_group_and_is_in_doubt(tmp_path: Path, calls_folder: Path) -> None:
    provider = make_provider(tmp_path, shell(FAMILY, str(tmp_path / "ids")))
    with pytest.raises(ProviderFailure) as caught:
        await provider.answer(InvokeRequest(question="q"), timeout_seconds=1)
    assert isinstance(caught.value.fault, TimedOut)
    assert (caught.value.billing, caught.value.retryable) == (Billing.UNKNOWN, False)
    for process_id in await ids_in(tmp_path / "ids"):
        await wait_until_gone(process_id)
    assert list(calls_folder.iterdir()) == []


async def test_cancelling_kills_the_whole_group(tmp_path: Path, calls_folder: Path) -> None:
    call = asyncio.create_task(answer_of(make_provider(tmp_path, shell(FAMILY, str(tmp_path / "ids")))))
    process_ids = await ids_in(tmp_path / "ids")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for process_id in process_ids:
        await wait_until_gone(process_id)
    assert list(calls_folder.iterdir()) == []


def processes_in(folder: Path) -> list[str]:
    """The processes whose working folder this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder.resolve():
                found.append(process.name)
    return found


async def test_a_call_cancelled_at_any_moment_of_its_start_leaves_nothing_behind(
    tmp_path: Path, calls_folder: Path
) -> None:
    provider = make_provider(tmp_path, shell("sleep 600 & wait"))
    for turns in range(40):
        call = asyncio.create_task(answer_of(provider))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    async with asyncio.timeout(30):
        while processes_in(tmp_path):
            await asyncio.sleep(0.01)
    assert list(calls_folder.iterdir()) == []


async def test_what_a_program_leaves_running_neither_holds_the_answer_up_nor_lives_on(tmp_path: Path) -> None:
    script = 'sleep 600 & echo "$!" > "$1"; echo answered'
    answer = await answer_of(make_provider(tmp_path, shell(script, str(tmp_path / "ids"))))
    assert answer.text == "answered\n"
    for process_id in await ids_in(tmp_path / "ids"):
        await wait_until_gone(process_id)


async def test_a_process_that_left_the_group_does_not_hold_the_answer_up(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
print("answered", flush=True)
os._exit(0)
"""
    try:
        answer = await answer_of(make_provider(tmp_path, [sys.executable, "-c", code, str(tmp_path / "ids")]))
        assert answer.text == "answered\n"
    finally:
        for process_id in await ids_in(tmp_path / "ids"):
            os.kill(process_id, 9)
