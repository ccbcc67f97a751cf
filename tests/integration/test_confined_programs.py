"""What a program sees and reaches with ``run_as`` and ``sandbox``, as an attacker's script finds it out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import ConfigError
from quintain.process import run_program
from quintain.program import Program
from quintain.program_confinement import Confinement, Sandbox, door_of

#: Reads what it can, and prints what it found as JSON. Its arguments: a secret file, a door's port, a foreign port.
ATTACK = """
import json, os, pathlib, socket, subprocess, sys
secret, door, foreign = sys.argv[1:]
def tried(attempt):
    try:
        return attempt()
    except BaseException as error:
        return type(error).__name__
def said(port):
    with socket.create_connection(("127.0.0.1", int(port)), 5) as connection:
        return connection.recv(10).decode()
def foreign_environments():
    return sum(bool(tried((one / "environ").read_bytes)) and tried((one / "environ").read_bytes) != "PermissionError"
        and one.name not in {str(os.getpid()), "1", "2"} for one in pathlib.Path("/proc").glob("[0-9]*"))
def forks():
    children = []
    try:
        while len(children) < 200:
            children.append(subprocess.Popen(["sleep", "60"]))
    finally:
        for child in children:
            child.kill()
    return len(children)
here = pathlib.Path(__file__).parent
print(json.dumps({
    "secret": tried(lambda: pathlib.Path(secret).read_text()),
    "results": tried(lambda: (here / "results" / "session-token").read_text()),
    "own file": tried(lambda: pathlib.Path(__file__).read_text()[:1]),
    "write": tried(lambda: (here / "written").write_text("x")),
    "door": tried(lambda: said(door)),
    "foreign": tried(lambda: said(foreign)),
    "environments": foreign_environments(),
    "memory": tried(lambda: len(bytearray(1 << 30))),
    "forks": tried(forks) if os.getuid() else "root",
    "uid": os.getuid(),
    "signal": tried(lambda: os.kill(int(os.environ["PARENT"]), 0)),
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An evaluation's folder that everybody may read, with results of another run."""
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    (tmp_path / "attack.py").write_text(ATTACK)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "session-token").write_text("a token")
    return tmp_path


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of this user, outside the evaluation's folder."""
    path = Path(__file__).with_name(f".secret-{os.getpid()}")
    path.touch(mode=0o600)
    path.write_text("a secret")
    yield path
    path.unlink()


@contextlib.asynccontextmanager
async def greeting_server() -> AsyncIterator[int]:
    """A server on the loopback that says hello; yields its port."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def attack(folder: Path, secret: Path, confinement: Confinement) -> dict[str, Any]:
    async with greeting_server() as door, greeting_server() as foreign:
        if confinement.sandbox is not None:
            confinement = Confinement(
                run_as=confinement.run_as,
                sandbox=confinement.sandbox,
                read=(folder,),
                door=door_of(f"http://127.0.0.1:{door}"),
            )
        interpreter = sys.executable if confinement.run_as is None else "/usr/bin/python3"
        finished = await run_program(
            Program(
                argv=[interpreter, str(folder / "attack.py"), str(secret), str(door), str(foreign)],
                env={"PATH": os.defpath, "PARENT": str(os.getpid())},
                cwd=folder,
                confinement=confinement,
            ),
            stdout_limit=10_000,
            timeout_seconds=60,
        )
    assert finished.exit_code == 0, finished.stderr.decode()
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def sandbox() -> Sandbox:
    """The sandbox, of this machine or of Debian's package."""
    if shutil.which("bwrap") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "bubblewrap"], check=False, capture_output=True)
    made = Sandbox(memory_mib=256, processes=20)
    try:
        Confinement(sandbox=made).check()
    except ConfigError as error:
        pytest.skip(error.message)
    return made


async def test_without_either_a_program_has_the_rights_of_its_user(folder: Path, secret: Path) -> None:
    found = await attack(folder, secret, Confinement())
    assert (found["secret"], found["results"], found["foreign"], found["write"]) == ("a secret", "a token", "hello", 1)


async def test_in_a_sandbox_a_program_reaches_its_folder_and_its_door_alone(folder: Path, secret: Path) -> None:
    found = await attack(folder, secret, Confinement(sandbox=sandbox()))
    assert found["own file"] == "\n"
    assert (found["secret"], found["results"]) == ("FileNotFoundError", "FileNotFoundError")
    assert (found["door"], found["foreign"]) == ("hello", "ConnectionRefusedError")
    assert found["write"] == "OSError"
    assert found["environments"] == 0
    assert found["memory"] == "MemoryError"
    assert found["forks"] in {"BlockingIOError", "root"}
    assert found["signal"] == "ProcessLookupError"
    assert not (folder / "written").exists()


async def test_as_another_user_a_program_reads_no_file_of_this_user(folder: Path, secret: Path) -> None:
    if os.geteuid() != 0:
        with pytest.raises(ConfigError):
            Confinement(run_as="nobody").check()
        return
    (folder / "results" / "session-token").chmod(0o600)
    found = await attack(folder, secret, Confinement(run_as="nobody"))
    assert (found["secret"], found["results"]) == ("PermissionError", "PermissionError")
    assert (found["write"], found["signal"]) == ("PermissionError", "PermissionError")
    assert (found["environments"], found["uid"]) == (0, pwd.getpwnam("nobody").pw_uid)


async def test_another_user_in_a_sandbox_has_the_limits_of_processes(folder: Path, secret: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts programs as another user")
    found = await attack(folder, secret, Confinement(run_as="nobody", sandbox=sandbox()))
    assert found["secret"] == "FileNotFoundError"
    assert (found["door"], found["foreign"]) == ("hello", "ConnectionRefusedError")
    assert (found["forks"], found["memory"]) == ("BlockingIOError", "MemoryError")
    assert found["uid"] == pwd.getpwnam("nobody").pw_uid


async def test_the_processes_of_a_sandbox_end_with_it(folder: Path) -> None:
    script = "setsid sleep 12345 & (setsid sleep 12345 &); sleep 0.1; echo started"
    finished = await run_program(
        Program(
            argv=["/bin/sh", "-c", script],
            env={"PATH": os.defpath},
            cwd=folder,
            confinement=Confinement(sandbox=sandbox(), read=(folder,)),
        ),
        stdout_limit=100,
        timeout_seconds=60,
    )
    assert finished.stdout == b"started\n", finished.stderr
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert (process / "cmdline").read_bytes() != b"sleep\x0012345\x00"


def test_what_a_machine_cannot_do_is_refused_and_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        Confinement(run_as="a user that is not here").check()
    with pytest.raises(ConfigError):
        door_of("https://gateway.example")
    with pytest.raises(ValueError, match="memory_mib"):
        Sandbox(memory_mib=0)
