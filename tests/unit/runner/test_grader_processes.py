"""Real grader processes, one for a case or kept warm: what they read and print, and how they fail."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quintain.programs.program import MARK_VARIABLE
from quintain_runner.graders.subprocesses import GraderCommand, GraderProcessPool, run_grader
from quintain_runner.graders.verdict import GraderError
from support.evaluations import write_script


def command(folder: Path, *argv: str, timeout_seconds: float = 30, env: dict[str, str] | None = None) -> GraderCommand:
    return GraderCommand(
        argv=argv, folder=folder, env=env or {"PATH": "/usr/bin:/bin"}, timeout_seconds=timeout_seconds
    )


async def run(folder: Path, source: str, *, timeout_seconds: float = 30, stdin: bytes = b"{}") -> bytes:
    argv = write_script(folder, "grader.py", source)
    return await run_grader(command(folder, *argv, timeout_seconds=timeout_seconds), stdin)


async def test_a_grader_reads_its_stdin_to_the_end_and_its_stdout_comes_back(tmp_path: Path) -> None:
    question = json.dumps({"text": "x" * 1_000_000}).encode()
    printed = await run(tmp_path, "import sys; sys.stdout.write(sys.stdin.read())", stdin=question)
    assert printed == question
    assert await run(tmp_path, "print('{}')", stdin=b"x" * 1_000_000) == b"{}\n", "one that never reads it"


async def test_a_grader_runs_in_its_folder_with_its_environment_alone(tmp_path: Path) -> None:
    argv = write_script(tmp_path, "g.py", "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))")
    printed = await run_grader(command(tmp_path, *argv, env={"DOOR": "open"}), b"")
    folder, env = json.loads(printed)
    assert Path(folder) == tmp_path
    assert env.pop(MARK_VARIABLE)
    assert {name: value for name, value in env.items() if name != "LC_CTYPE"} == {"DOOR": "open"}


async def test_a_crash_is_told_with_its_exit_code_and_the_end_of_stderr_tokens_masked(tmp_path: Path) -> None:
    token = f"qtn_ses_{'a' * 12}_{'b' * 43}_{'c' * 6}"
    source = (
        f"import sys; print('{{\"score\": 0}}'); print('x' * 5000, {token!r}, 'the end', file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(GraderError) as error:
        await run(tmp_path, source)
    assert error.value.message.startswith("It crashed, exit code 3: xxx")
    assert error.value.message.endswith("the end")
    assert len(error.value.message) < 350
    assert "bbb" not in error.value.message
    with pytest.raises(GraderError, match=r"killed by signal 9.*wrote nothing on stderr"):
        await run(tmp_path, "import os; os.kill(os.getpid(), 9)")


async def test_python_is_the_runners_own_where_the_path_has_none(tmp_path: Path) -> None:
    write_script(tmp_path, "g.py", "import sys; print(sys.executable)")
    printed = await run_grader(command(tmp_path, "python", "g.py", env={"PATH": str(tmp_path)}), b"")
    assert printed.decode().strip() == sys.executable


#: Says who it is, how many lines it has had, and what this one was; misbehaves as it is told to.
HOST = """
import os, sys, time
for number, line in enumerate(sys.stdin, start=1):
    word = line.strip()
    if word == "crash":
        sys.exit("I fell over")
    if word == "stop":
        sys.exit()
    if word == "hang":
        time.sleep(600)
    if word == "close":
        os.close(1)
        time.sleep(600)
    print(os.getpid(), number, word, *["\\nand more"] * (word == "twice"), flush=True)
    if word == "last":
        sys.exit()
"""


@asynccontextmanager
async def pool(folder: Path, source: str = HOST, *, timeout_seconds: float = 30) -> AsyncIterator[GraderProcessPool]:
    argv = tuple(write_script(folder, "host.py", source))
    async with GraderProcessPool(
        GraderCommand(argv=argv, folder=folder, env={}, timeout_seconds=timeout_seconds)
    ) as warm:
        yield warm


async def grade_line(process_pool: GraderProcessPool, word: str) -> tuple[int, int, str]:
    pid, number, said = (await process_pool.request(word.encode())).decode().split()
    return int(pid), int(number), said


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_one_process_grades_case_after_case_and_ends_with_the_run(tmp_path: Path) -> None:
    async with pool(tmp_path) as warm:
        said = [await grade_line(warm, word) for word in ("a", "b", "c")]
        (pid,) = {pid for pid, _, _ in said}
        assert [rest for _, *rest in said] == [[1, "a"], [2, "b"], [3, "c"]]
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_as_many_processes_work_as_cases_are_graded_at_once(tmp_path: Path) -> None:
    async with pool(tmp_path) as warm:
        said = await asyncio.gather(*(grade_line(warm, f"case-{number}") for number in range(3)))
        assert len({pid for pid, _, _ in said}) == 3
        assert [word for _, _, word in said] == ["case-0", "case-1", "case-2"]
        again = await asyncio.gather(*(grade_line(warm, "again") for _ in range(3)))
        assert {pid for pid, _, _ in again} == {pid for pid, _, _ in said}


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("crash", "It crashed, exit code 1: I fell over"),
        ("stop", "It ended without a verdict on this case"),
        ("close", "It closed its stdout before it printed a verdict"),
    ],
)
async def test_a_process_that_fails_takes_no_other_along(tmp_path: Path, word: str, sentence: str) -> None:
    async with pool(tmp_path) as warm:
        first, other = await asyncio.gather(grade_line(warm, "a"), grade_line(warm, "b"))
        with pytest.raises(GraderError, match=sentence):
            await warm.request(word.encode())
        left = {await_pid for await_pid in (first[0], other[0]) if is_alive(await_pid)}
        assert len(left) <= 1
        said = await asyncio.gather(grade_line(warm, "c"), grade_line(warm, "d"))
        assert [word for _, _, word in said] == ["c", "d"]
        assert left <= {pid for pid, _, _ in said}


async def test_a_process_that_hangs_is_killed_after_the_timeout_of_a_case(tmp_path: Path) -> None:
    async with pool(tmp_path, timeout_seconds=3) as warm:
        pid, _, _ = await grade_line(warm, "a")
        with pytest.raises(GraderError, match="hung past its timeout of 3 s and was killed"):
            await warm.request(b"hang")
        assert not is_alive(pid)
        assert (await grade_line(warm, "b"))[1:] == (1, "b")


async def test_a_process_that_says_more_than_was_asked_grades_no_other_case(tmp_path: Path) -> None:
    async with pool(tmp_path) as warm:
        first, _, _ = await grade_line(warm, "twice")
        # Its second line must be no verdict on the next case; wait until it is there.
        while warm._idle[0].is_usable:
            await asyncio.sleep(0.01)
        second, number, word = await grade_line(warm, "next")
        assert (number, word) == (1, "next")
        assert first != second
        assert not is_alive(first)
