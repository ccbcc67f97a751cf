"""Everything that starts a program on somebody's behalf keeps the same promises about its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.config.program_targets import CommandTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ReplyTooLarge, TargetUnavailable, TimedOut
from quintain.programs.sandbox import Confinement, Sandbox
from quintain_host.supervisor import SlotProcesses
from quintain_runner.graders.subprocesses import GraderCommand, GraderProcessPool, run_grader
from quintain_runner.graders.verdict import GraderError
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext, ProviderFailure
from support.sandbox import sandbox_refusal
from support.waiting import wait_until

#: Runs a program in a folder, with this environment, for at most so many seconds; returns its stdout.
Run = Callable[[list[str], Path, dict[str, str], float], Coroutine[object, object, str]]


async def command_target(argv: list[str], folder: Path, env: dict[str, str], timeout_seconds: float) -> str:
    target = CommandTarget(provider="command", command=argv)
    provider = build_provider("it", target, ProviderContext(folder, env))
    answer = await provider.answer(InvokeRequest(question="q"), timeout_seconds=timeout_seconds)
    return answer.text


def grader_command(argv: list[str], folder: Path, env: dict[str, str], timeout_seconds: float) -> GraderCommand:
    return GraderCommand(argv=tuple(argv), folder=folder, env=env, timeout_seconds=timeout_seconds)


async def grader(argv: list[str], folder: Path, env: dict[str, str], timeout_seconds: float) -> str:
    return (await run_grader(grader_command(argv, folder, env, timeout_seconds), b"q")).decode()


async def warm_grader(argv: list[str], folder: Path, env: dict[str, str], timeout_seconds: float) -> str:
    async with GraderProcessPool(grader_command(argv, folder, env, timeout_seconds)) as pool:
        return (await pool.request(b"q")).decode()


async def slot_process(argv: list[str], _: Path, env: dict[str, str], timeout_seconds: float) -> str:
    broker = MemoryBroker()
    children = SlotProcesses(broker.connect(), argv, 1, env)
    children.start()
    try:
        await asyncio.sleep(timeout_seconds)
    finally:
        await children.stop(0)
        broker.close()
    return ""


async def grader_in_a_sandbox(argv: list[str], folder: Path, env: dict[str, str], timeout_seconds: float) -> str:
    folder.chmod(0o755)  # a sandbox of root runs as another user
    command = grader_command(argv, folder, env, timeout_seconds)
    command = replace(command, confinement=Confinement(sandbox=Sandbox(), read=(folder,)))
    return (await run_grader(command, b"q")).decode()


@pytest.fixture(params=[command_target, grader, warm_grader, grader_in_a_sandbox], ids=lambda user: user.__name__)
def run(request: pytest.FixtureRequest) -> Run:
    user: Run = request.param
    if user is grader_in_a_sandbox and (refusal := sandbox_refusal()) is not None:
        pytest.skip(refusal)
    return user


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    """An environment that tells this test's processes; what is left of them is ended."""
    mark = {"QUINTAIN_TEST_MARK": uuid.uuid4().hex}
    yield mark
    for process_id in marked(mark):
        with contextlib.suppress(ProcessLookupError):  # a process of a sandbox may be about to end by itself
            os.kill(process_id, signal.SIGKILL)


def marked(mark: dict[str, str]) -> list[int]:
    """The living processes with this mark in their environment."""
    wanted = mark["QUINTAIN_TEST_MARK"].encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # What ends meanwhile, and what is another user's.
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


async def all_gone(mark: dict[str, str]) -> list[int]:
    """Wait until the killed have gone; returns those that stay."""
    with contextlib.suppress(TimeoutError):
        await wait_until(lambda: not marked(mark))
    return marked(mark)


def message_of(error: Exception) -> str:
    if isinstance(error, ProviderFailure):
        return error.fault.message
    assert isinstance(error, GraderError)
    return error.message


#: Starts children at once, and waits for ever.
FAMILY = ["/bin/sh", "-c", "sleep 600 & sleep 600 & wait"]


async def test_a_program_cancelled_at_any_moment_of_its_start_leaves_no_process(
    run: Run, tmp_path: Path, mark: dict[str, str]
) -> None:
    await cancel_while_it_starts(run, tmp_path, mark, most_cancels=2)


async def test_a_slot_cancelled_at_any_moment_of_its_start_leaves_no_process(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    await cancel_while_it_starts(slot_process, tmp_path, mark, most_cancels=1)


async def cancel_while_it_starts(run: Run, folder: Path, mark: dict[str, str], *, most_cancels: int) -> None:
    """Start 120 programs, eight at a time, and cancel each once or more within the first 30 turns of the loop."""
    moments = random.Random(12)
    for _ in range(15):
        calls = [asyncio.create_task(run(FAMILY, folder, {"PATH": os.defpath, **mark}, 60)) for _ in range(8)]

        async def cancel(call: asyncio.Task[str], turns: int, cancels: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(cancels):
                call.cancel()
                await asyncio.sleep(0)

        await asyncio.gather(*(cancel(call, moments.randrange(30), moments.randint(1, most_cancels)) for call in calls))
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    left = await all_gone(mark)
    assert not left, f"{len(left)} processes of 120 programs are left"


async def test_a_program_past_its_timeout_ends_with_its_children(
    run: Run, tmp_path: Path, mark: dict[str, str]
) -> None:
    with pytest.raises((ProviderFailure, GraderError)) as caught:
        await run(FAMILY, tmp_path, {"PATH": os.defpath, **mark}, 1)
    if isinstance(caught.value, ProviderFailure):
        assert isinstance(caught.value.fault, TimedOut)
    else:
        assert "timeout of 1 s" in message_of(caught.value)
    assert await all_gone(mark) == []


#: Starts processes that leave the group: with a session of their own, and as a daemon does.
LEAVES = "setsid sleep 600 & (setsid sh -c 'sleep 600 & sleep 600' &) ; QUINTAIN_LEFT=1 setsid sleep 600 & "


@pytest.mark.parametrize("ending", ["echo done", "sleep 0.2; echo done", "exit 3", "sleep 600"])
async def test_processes_that_leave_the_group_end_with_their_program(
    run: Run, tmp_path: Path, mark: dict[str, str], ending: str
) -> None:
    with contextlib.suppress(ProviderFailure, GraderError):
        await run(["/bin/sh", "-c", LEAVES + ending], tmp_path, {"PATH": os.defpath, **mark}, 2)
    assert await all_gone(mark) == []


async def test_a_program_that_runs_other_programs_ends_with_theirs(
    run: Run, tmp_path: Path, mark: dict[str, str]
) -> None:
    inner = (
        "import asyncio, os; from quintain.programs.processes import run_program; "
        "from quintain.programs.program import Program; "
        "env = dict(os.environ, PATH=os.defpath); sleep = Program(argv=['sleep', '600'], env=env); "
        "asyncio.run(run_program(sleep, stdout_limit=1))"
    )
    with pytest.raises((ProviderFailure, GraderError)):
        await run([sys.executable, "-c", inner], tmp_path, {"PATH": os.defpath, **mark}, 3)
    assert await all_gone(mark) == []


async def test_a_program_that_prints_without_end_is_stopped_though_it_overlooks_a_closed_pipe(
    run: Run, tmp_path: Path, mark: dict[str, str]
) -> None:
    script = "import os, time\ntry:\n while True: os.write(1, b'x' * 65536)\nexcept OSError: time.sleep(600)"
    with pytest.raises((ProviderFailure, GraderError)) as caught:
        await run([sys.executable, "-c", script], tmp_path, mark, 20)
    if isinstance(caught.value, ProviderFailure):
        assert isinstance(caught.value.fault, ReplyTooLarge)
    else:
        assert "more than 8 MiB" in message_of(caught.value)
    assert await all_gone(mark) == []


async def test_any_amount_of_stderr_is_read_and_its_end_is_kept(run: Run, tmp_path: Path, mark: dict[str, str]) -> None:
    script = "import sys; sys.stderr.write('x' * 3_000_000 + 'the end'); sys.exit(3)"
    with pytest.raises((ProviderFailure, GraderError)) as caught:
        await run([sys.executable, "-c", script], tmp_path, mark, 30)
    said = message_of(caught.value)
    assert said.endswith("the end")
    assert len(said) < 400


async def test_python_is_found_where_only_python3_is_on_the_path(
    run: Run, tmp_path: Path, mark: dict[str, str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    said = await run(["python", "-c", "print('found')"], tmp_path, {"PATH": str(programs), **mark}, 30)
    assert said.strip() == "found"


async def test_the_python_of_the_path_goes_first(run: Run, tmp_path: Path, mark: dict[str, str]) -> None:
    own = tmp_path / "python"
    own.write_text("#!/bin/sh\necho its own\n")
    own.chmod(0o755)
    assert (await run(["python"], tmp_path, {"PATH": str(tmp_path), **mark}, 30)).strip() == "its own"


@pytest.mark.parametrize("kind", ["no such program", "no permission", "no program"])
async def test_a_program_that_cannot_be_started_is_told_by_its_name(
    run: Run, tmp_path: Path, mark: dict[str, str], kind: str
) -> None:
    path = tmp_path / "judge"
    if kind != "no such program":
        path.write_bytes(b"\x7fELF, but no program")
        path.chmod(0o755 if kind == "no program" else 0o644)
    with pytest.raises((ProviderFailure, GraderError)) as caught:
        await run([str(path)], tmp_path, mark, 30)
    if isinstance(caught.value, ProviderFailure):
        assert isinstance(caught.value.fault, TargetUnavailable)
        assert f"{path} cannot be started" in caught.value.fault.message
    else:
        assert f"{str(path)!r} cannot be started" in message_of(caught.value)
