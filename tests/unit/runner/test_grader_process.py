"""Grader processes, real ones: what they read and print, how they fail, and that nothing of them is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quintain.programs.program import MARK_VARIABLE
from quintain_runner.graders.subprocesses import GraderCommand, run_grader
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


async def test_a_grader_that_never_reads_its_stdin_is_no_special_case(tmp_path: Path) -> None:
    assert await run(tmp_path, "print('{}')", stdin=b"x" * 1_000_000) == b"{}\n"


async def test_a_grader_runs_in_its_folder_with_its_environment_alone(tmp_path: Path) -> None:
    argv = write_script(tmp_path, "g.py", "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))")
    printed = await run_grader(command(tmp_path, *argv, env={"DOOR": "open"}), b"")
    folder, env = json.loads(printed)
    assert Path(folder) == tmp_path
    assert env.pop(MARK_VARIABLE)
    assert {name: value for name, value in env.items() if name != "LC_CTYPE"} == {"DOOR": "open"}


async def test_a_crash_is_told_with_its_exit_code_and_the_end_of_stderr_tokens_masked(tmp_path: Path) -> None:
    token = f"qtn_ses_{'a' * 12}_{'b' * 43}_{'c' * 6}"
    source = f"import sys; print('x' * 5000, {token!r}, 'the end', file=sys.stderr); sys.exit(3)"
    with pytest.raises(GraderError) as error:
        await run(tmp_path, source)
    assert error.value.message.startswith("It crashed, exit code 3: xxx")
    assert error.value.message.endswith("the end")
    assert len(error.value.message) < 350
    assert "bbb" not in error.value.message


async def test_a_crash_counts_whatever_was_printed_before(tmp_path: Path) -> None:
    with pytest.raises(GraderError, match="exit code 1"):
        await run(tmp_path, "print('{\"score\": 0}'); raise SystemExit(1)")


async def test_a_silent_crash_and_a_signal_are_told(tmp_path: Path) -> None:
    with pytest.raises(GraderError, match=r"killed by signal 9.*wrote nothing on stderr"):
        await run(tmp_path, "import os; os.kill(os.getpid(), 9)")


async def test_python_is_the_runners_own_where_the_path_has_none(tmp_path: Path) -> None:
    write_script(tmp_path, "g.py", "import sys; print(sys.executable)")
    printed = await run_grader(command(tmp_path, "python", "g.py", env={"PATH": str(tmp_path)}), b"")
    assert printed.decode().strip() == sys.executable
