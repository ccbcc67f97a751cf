"""A PostgreSQL cluster of our own: its folder, its port, on the loopback only, and gone without a trace.

It shares nothing with a server that the machine may run for others. The server refuses to be root, so root starts
it as ``postgres``, or as ``nobody`` where there is no such user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from quintain.errors import QuintainError
from quintain.testing.commands import run_command
from quintain.testing.ports import LOOPBACK, free_port
from quintain.testing.postgres_under_test import PostgresAdmin, PostgresUnderTest, wait_for_version
from quintain.testing.watcher import Watcher

_INITDB_SECONDS = 120.0
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0

#: Reads the ids of servers, of which the last one runs; an empty line says that none does. An immediate stop: what it
#: leaves half-done, nobody will read. Its processes may still be writing while the folder goes: hence the second try.
_CLEAN_UP = """
while read -r line; do server=$line; done
[ -z "$server" ] || kill -s QUIT "$server"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] || break; sleep 0.2; done
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"""

#: Durability is PostgreSQL's own promise, not ours to test: without fsync a crash of the server still loses nothing,
#: only one of the machine does, and its disk is not what these tests measure.
_SETTINGS = {"fsync": "off", "max_connections": "100", "listen_addresses": LOOPBACK, "logging_collector": "off"}

#: The settings of another server must not reach ours.
_FOREIGN_SETTINGS = ("PG", "POSTGRES", "NOTIFY_SOCKET")

_LOGIN = "quintain"


@contextlib.contextmanager
def private_cluster(programs: Path, environment: Mapping[str, str]) -> Iterator[PostgresUnderTest]:
    """A cluster of these programs, until left. Raises `QuintainError` where it cannot be made or started."""
    owner = _owner()
    cluster = _Cluster(programs, Path(tempfile.mkdtemp(prefix="quintain-postgres-")), environment, owner)
    try:
        version = cluster.make()
        yield PostgresUnderTest(
            url=cluster.url,
            how=f"PostgreSQL {version}, a private cluster of {programs} at {LOOPBACK}:{cluster.port}",
            admin=PostgresAdmin(
                crash=lambda: cluster.halt(signal.SIGQUIT),
                stop=lambda: cluster.halt(signal.SIGINT),
                kill=cluster.kill,
                start=cluster.start,
            ),
        )
    finally:
        cluster.end()


class _Cluster:
    """One server process at a time, on data that outlives it."""

    def __init__(
        self, programs: Path, folder: Path, environment: Mapping[str, str], owner: tuple[int, int] | None
    ) -> None:
        self.port = free_port()
        self._password = secrets.token_urlsafe(12)
        self.url = f"postgresql://{_LOGIN}:{self._password}@{LOOPBACK}:{self.port}/postgres"
        self._programs, self._folder = programs, folder
        self._environment = _own_environment(folder, environment)
        self._owner = owner
        self._watcher = Watcher(_CLEAN_UP, str(folder))
        self._server: subprocess.Popen[bytes] | None = None

    def make(self) -> str:
        """Make the data and start a server on it; returns its version."""
        password = self._folder / "password"
        password.write_text(self._password, encoding="ascii")
        if self._owner is not None:
            os.chown(self._folder, *self._owner)
            os.chown(password, *self._owner)
        words = ["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"]
        words += [f"--pgdata={self._folder / 'data'}", f"--username={_LOGIN}", f"--pwfile={password}"]
        run_command(
            [*self._as_owner(), str(self._programs / "initdb"), *words],
            environment=self._environment,
            timeout_seconds=_INITDB_SECONDS,
        )
        return self._start()

    def start(self) -> None:
        """Start a server on the data; returns when it answers."""
        self._start()

    def halt(self, how: signal.Signals) -> None:
        """End the server: SIGQUIT finishes nothing (``pg_ctl stop -m immediate``), SIGINT cuts connections and ends in
        good order (``-m fast``)."""
        assert self._server is not None
        self._server.send_signal(how)
        self._server.wait(_STOP_SECONDS)
        self._watcher.tell("")

    def kill(self) -> None:
        """SIGKILL for the first process, which can tell nobody: returns when its children have noticed, because
        another server refuses the data until they are gone."""
        assert self._server is not None
        pid = self._server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        self.halt(signal.SIGKILL)
        ends = time.monotonic() + _STOP_SECONDS
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < ends:
            time.sleep(0.02)

    def end(self) -> None:
        """Stop it, and remove its folder."""
        self._watcher.finish()
        if self._server is not None:
            self._server.wait()

    def _start(self) -> str:
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(self._folder)}
        server = self._spawn(
            *self._as_owner(),
            str(self._programs / "postgres"),
            *("-D", str(self._folder / "data")),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        )
        try:
            return wait_for_version(self.url, timeout_seconds=_START_SECONDS, alive=lambda: server.poll() is None)
        except QuintainError as error:
            said = (self._folder / "output").read_text(encoding="utf-8", errors="replace")
            last_words = " / ".join(said.splitlines()[-5:]) or "none"
            raise QuintainError(f"{error}; the server's last words: {last_words}") from error

    def _as_owner(self) -> list[str]:
        """The words before a command that is not to be root's."""
        if self._owner is None:
            return []
        user, group = self._owner
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--"]

    def _spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        try:
            with (self._folder / "output").open("ab") as output:
                self._server = subprocess.Popen(  # noqa: S603 -- the words are ours, and no shell reads them
                    argv,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C at the terminal is not for it
                )
        except OSError as error:
            raise QuintainError(f"{argv[0]} could not be started: {error.strerror}") from error
        self._watcher.tell(str(self._server.pid))
        return self._server


def _own_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN_SETTINGS)}
    return inherited | {"HOME": str(folder), "LC_ALL": "C", "TZ": "UTC"}


def _owner() -> tuple[int, int] | None:
    """Who is to own the cluster, as numbers of user and group; None for whoever we are, where that is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise QuintainError("a PostgreSQL server may not be root, and there is neither a user postgres nor nobody here")
