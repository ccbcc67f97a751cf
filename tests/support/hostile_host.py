"""Runs `hostile_program` in a sandbox, and prints as JSON what succeeded.

It runs in namespaces of its own, so that no process, mount or name outside of them is in the reach of either. Its
argument is a JSON object: the ``user`` that it becomes (null: it stays who it is), the sandbox's ``run_as``, the
folders that the sandbox shows (``read``) and hides (``hidden``), and the files that nobody may see (``secrets``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from quintain.programs.processes import run_program
from quintain.programs.program import Program
from quintain.programs.sandbox import Confinement, Sandbox

_PROGRAM = Path(__file__).with_name("hostile_program.py")


def main() -> None:
    """Run the hostile program as the argument says; exit code 0 with JSON on stdout."""
    given = json.loads(sys.argv[1])
    if given["user"] is not None:
        _become(given["user"])
    confinement = Confinement(
        run_as=given["run_as"],
        sandbox=Sandbox(processes=10_000),
        read=(Path(given["read"]), _PROGRAM.parent),
        hidden=(Path(given["hidden"]),),
    )
    canary = secrets.token_hex(16)
    users = {None, None if confinement.user is None else pwd.getpwnam(confinement.user).pw_uid}
    others = [subprocess.Popen(["/bin/sleep", "600"], env={"CANARY": canary}, user=user) for user in users]
    program = Program(argv=[sys.executable, "-I", str(_PROGRAM)], env={}, cwd=_PROGRAM.parent, confinement=confinement)
    asked = json.dumps({"secrets": given["secrets"], "canary": canary}).encode()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{canary}")
        listener.listen()
        finished = asyncio.run(run_program(program, stdin=asked, stdout_limit=1_000_000, timeout_seconds=60))
    if not finished.stdout:
        sys.exit(f"exit code {finished.exit_code}: {finished.stderr.decode(errors='replace')}")
    killed = [f"kills {other.pid}" for other in others if other.poll() is not None]
    for other in others:
        other.kill()
        other.wait()
    print(json.dumps([*json.loads(finished.stdout), *killed]))


def _become(name: str) -> None:
    """Become a user who can start this interpreter, wherever it is."""
    checkout = _PROGRAM.parents[2]
    own = (checkout / name for name in ("shared", "services", "tests"))
    _open_parents(dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix), *own)))
    entry = pwd.getpwnam(name)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def _open_parents(folders: Iterable[Path]) -> None:
    """Put, over each outermost folder that others may not enter, one that has nothing but the way to these folders."""
    below: dict[Path, list[Path]] = {}
    for folder in folders:
        closed = next((parent for parent in reversed(folder.parents) if not parent.stat().st_mode & 1), None)
        if closed is not None:
            below.setdefault(closed, []).append(folder)
    for closed, hidden in below.items():
        with contextlib.ExitStack() as stack:
            kept = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in hidden]
            for folder, place in zip(hidden, kept, strict=True):
                _mount("--bind", folder, place)
            _mount("-t", "tmpfs", "-o", "mode=755", "none", closed)
            for folder, place in zip(hidden, kept, strict=True):
                folder.mkdir(parents=True)
                _mount("--move", place, folder)


def _mount(*words: object) -> None:
    subprocess.run(["/bin/mount", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
