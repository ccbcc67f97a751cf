"""What a program sees and reaches with ``run_as`` and ``sandbox``, as an attacker's script finds it out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import random
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.config.program_targets import CommandTarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError, ProviderFailed
from quintain.programs.processes import end_process, run_program, run_to_file, start_process
from quintain.programs.program import Program, ProgramNotFound, check_rights
from quintain.programs.sandbox import Confinement, Sandbox, gateway_address
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import ProviderContext, ProviderFailure
from support.sandbox import sandbox_refusal
from support.waiting import wait_until

#: Reads what it can, and prints what it found as JSON. Its arguments: a secret file, a gateway's port,
#: a foreign port, the id of another process, and what that has in its environment.
ATTACK = """
import json, os, pathlib, socket, subprocess, sys
secret, gateway, foreign, process, canary = sys.argv[1:]
def tried(attempt):
    try:
        return attempt()
    except BaseException as error:
        return type(error).__name__
def said(port):
    with socket.create_connection(("127.0.0.1", int(port)), 5) as connection:
        return connection.recv(10).decode()
def sees_environment():
    wanted = canary.encode()
    return any(wanted in found for one in pathlib.Path("/proc").glob("[0-9]*")
        if isinstance(found := tried((one / "environ").read_bytes), bytes))
def forks():
    children = []
    try:
        while len(children) < 40:
            children.append(subprocess.Popen(["sleep", "60"]))
    finally:
        for child in children:
            child.kill()
            child.wait()
    return len(children)
here = pathlib.Path(__file__).parent
print(json.dumps({
    "secret": tried(lambda: pathlib.Path(secret).read_text()),
    "results": tried(lambda: (here / "results" / "session-token").read_text()),
    "own file": tried(lambda: pathlib.Path(__file__).read_text()[:1]),
    "write": tried(lambda: (here / "written").write_text("x")),
    "gateway": tried(lambda: said(gateway)),
    "foreign": tried(lambda: said(foreign)),
    "environment": sees_environment(),
    "memory": tried(lambda: len(bytearray(1 << 29))),
    "forks": tried(forks),
    "uid": os.getuid(),
    "signal": tried(lambda: os.kill(int(process), 0)),
}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """An evaluation's folder that everybody may read, with results of another run."""
    with tempfile.TemporaryDirectory(prefix="quintain-test-") as name:
        made = Path(name)
        made.chmod(0o755)
        (made / "attack.py").write_text(ATTACK)
        (made / "results").mkdir()
        (made / "results" / "session-token").write_text("a token")
        yield made


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


@contextlib.asynccontextmanager
async def running(program: Program) -> AsyncIterator[int]:
    """A process beside the program; yields its id."""
    process = await start_process(program)
    try:
        yield process.pid
    finally:
        await end_process(process)


async def attack(folder: Path, secret: Path, run_as: str | None = None, sandbox: Sandbox | None = None) -> Any:
    """What the script finds out; nothing where this machine or this user cannot confine it so, which is refused."""
    if (run_as is not None and os.geteuid() != 0) or (sandbox is not None and sandbox_refusal() is not None):
        with pytest.raises(ConfigError):
            Confinement(run_as=run_as, sandbox=sandbox).check()
        return None
    canary = secrets.token_hex(16)
    other = Program(argv=["sleep", "600"], env={"PATH": os.defpath, "CANARY": canary})
    async with greeting_server() as gateway, greeting_server() as foreign, running(other) as process:
        shown = {"read": (folder,), "gateway": gateway_address(f"http://127.0.0.1:{gateway}")} if sandbox else {}
        interpreter = sys.executable if run_as is None else "/usr/bin/python3"
        words = map(str, (secret, gateway, foreign, process, canary))
        confinement = Confinement(run_as=run_as, sandbox=sandbox, **shown)
        program = Program(
            argv=[interpreter, str(folder / "attack.py"), *words],
            env={"PATH": os.defpath},
            cwd=folder,
            confinement=confinement,
        )
        finished = await run_program(program, stdout_limit=10_000, timeout_seconds=60)
    assert finished.exit_code == 0, finished.stderr.decode()
    return json.loads(finished.stdout)


SMALL = Sandbox(memory_mib=256, processes=20)

#: A user of every Debian that has no processes: those of the same user elsewhere on the machine count.
OTHER_USER = "games" if any(entry.pw_name == "games" for entry in pwd.getpwall()) else "nobody"


@pytest.fixture
def makes_sandboxes() -> None:
    """Skips a test, by the words of the refusal, on a machine that makes no sandboxes."""
    if (refusal := sandbox_refusal()) is not None:
        pytest.skip(refusal)


def processes_like(words: bytes) -> list[int]:
    """The living processes with this command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes() == words:
                found.append(int(process.name))
    return found


async def test_without_either_a_program_has_the_rights_of_its_user(folder: Path, secret: Path) -> None:
    found = await attack(folder, secret)
    assert (found["secret"], found["results"], found["foreign"], found["write"]) == ("a secret", "a token", "hello", 1)
    assert found["environment"] is True


#: What a program in a sandbox finds, whoever runs it.
IN_A_SANDBOX = {
    "own file": "\n",
    "secret": "FileNotFoundError",
    "results": "FileNotFoundError",
    "gateway": "hello",
    "foreign": "ConnectionRefusedError",
    "write": "OSError",
    "environment": False,
    "memory": "MemoryError",
    "forks": "BlockingIOError",
    "signal": "ProcessLookupError",
}


@pytest.mark.parametrize("run_as", [None, OTHER_USER], ids=["this user", "another user"])
async def test_in_a_sandbox_a_program_reaches_its_folder_and_its_gateway_alone(
    folder: Path, secret: Path, run_as: str | None
) -> None:
    found = await attack(folder, secret, run_as, SMALL)
    if found is not None:
        uid = found.pop("uid")
        assert found == IN_A_SANDBOX
        assert run_as is None or uid == pwd.getpwnam(OTHER_USER).pw_uid
        assert not (folder / "written").exists()


async def test_as_another_user_a_program_reads_no_file_of_this_user(folder: Path, secret: Path) -> None:
    (folder / "results" / "session-token").chmod(0o600)
    found = await attack(folder, secret, OTHER_USER)
    if found is not None:
        refused = {found[name] for name in ("secret", "results", "write", "signal")}
        assert (refused, found["environment"], found["uid"]) == (
            {"PermissionError"}, False, pwd.getpwnam(OTHER_USER).pw_uid
        )  # fmt: skip


#: Leaves the process group, and takes the variable away by which its processes are found outside of a sandbox.
ESCAPES = "(env -i setsid sleep {seconds} &); env -i setsid sleep {seconds} & sleep 0.1; echo started"


async def test_the_processes_of_a_sandbox_end_with_it(folder: Path, makes_sandboxes: None) -> None:
    seconds = str(random.randrange(10**6, 10**7))
    finished = await run_program(
        Program(
            argv=["/bin/sh", "-c", ESCAPES.format(seconds=seconds)],
            env={"PATH": os.defpath},
            cwd=folder,
            confinement=Confinement(sandbox=SMALL, read=(folder,)),
        ),
        stdout_limit=100,
        timeout_seconds=60,
    )
    assert finished.stdout == b"started\n", finished.stderr
    await wait_until(lambda: not processes_like(f"sleep\0{seconds}\0".encode()))


async def test_a_program_that_a_sandbox_cannot_start_is_told_by_its_error(folder: Path, makes_sandboxes: None) -> None:
    confinement = Confinement(sandbox=SMALL, read=(folder,))
    program = Program(argv=[str(folder / "nothing")], env={}, cwd=folder, confinement=confinement)
    with pytest.raises(ProgramNotFound):
        await run_program(program, stdout_limit=100, timeout_seconds=60)
    with (folder / "out").open("wb") as out, pytest.raises(ProgramNotFound):
        run_to_file(program, stdout=out, stderr=out)


def test_a_dataset_command_is_confined_too(folder: Path, secret: Path, makes_sandboxes: None) -> None:
    program = Program(
        argv=["/bin/sh", "-c", f"cat attack.py {secret}; ls results"],
        env={"PATH": os.defpath},
        cwd=folder,
        confinement=Confinement(sandbox=SMALL, read=(folder,)),
    )
    with (folder / "out").open("w+b") as out, (folder / "errors").open("wb") as errors:
        assert run_to_file(program, stdout=out, stderr=errors) == 0
        out.seek(0)
        assert out.read().decode() == ATTACK


async def test_a_target_in_a_sandbox_answers_with_no_file_that_it_could_not_read(
    folder: Path, secret: Path, makes_sandboxes: None
) -> None:
    answers = {}
    for name, script in (("written", "echo hello > {output_file}"), ("linked", f"ln -s {secret} {{output_file}}")):
        target = CommandTarget(provider="command", command=["/bin/sh", "-c", script], sandbox=SMALL)
        provider = build_provider(name, target, ProviderContext(folder, {"PATH": os.defpath}))
        try:
            answers[name] = (await provider.answer(InvokeRequest(question="q"), timeout_seconds=60)).text.strip()
        except ProviderFailure as failure:
            answers[name] = failure.fault.code
    assert answers == {"written": "hello", "linked": ProviderFailed.code}


@pytest.mark.parametrize("name", ["a user that is not here", "root"])
def test_a_user_that_limits_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Confinement(run_as=name).check()


def test_a_folder_that_another_user_cannot_enter_is_refused_by_its_path(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts programs as another user")
    closed = folder / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o700)
    program = Program(argv=["/bin/sh"], env={}, cwd=closed / "inner", confinement=Confinement(run_as=OTHER_USER))
    with pytest.raises(ConfigError, match=f"{closed};"):
        check_rights(program)


def test_a_program_in_a_folder_that_another_user_cannot_enter_is_named(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts programs as another user")
    closed = folder / "closed"
    closed.mkdir()
    interpreter = closed / "python3"
    shutil.copy("/bin/sh", interpreter)
    closed.chmod(0o700)
    (folder / "python").symlink_to(interpreter)
    env = {"PATH": str(folder)}
    program = Program(argv=["python"], env=env, cwd=folder, confinement=Confinement(run_as=OTHER_USER))
    with pytest.raises(ConfigError) as refused:
        check_rights(program)
    assert OTHER_USER in refused.value.message
    assert f"{closed}," in refused.value.message
    assert str(interpreter) in refused.value.message


def test_a_folder_that_a_sandbox_does_not_show_is_refused_by_its_path(folder: Path, makes_sandboxes: None) -> None:
    with tempfile.TemporaryDirectory(prefix="quintain-test-") as outside:
        confinement = Confinement(sandbox=SMALL, read=(folder,))
        program = Program(argv=["/bin/sh"], env={}, cwd=Path(outside), confinement=confinement)
        with pytest.raises(ConfigError, match=f"{outside};"):
            check_rights(program)


def test_without_bubblewrap_a_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="bubblewrap"):
        Confinement(sandbox=SMALL).check()


def test_a_gateway_on_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError):
        gateway_address("https://gateway.example")


def test_a_sandbox_has_memory() -> None:
    with pytest.raises(ValueError, match="memory_mib"):
        Sandbox(memory_mib=0)
