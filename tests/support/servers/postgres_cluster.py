"""A private PostgreSQL cluster: own folder and port, on the loopback only, removed at the end.

It shares nothing with a server that the machine may run for others. PostgreSQL refuses to run as root, so root starts
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

from support.servers.cleanup import CleanupProcess
from support.servers.commands import run_command
from support.servers.errors import ServerUnavailable
from support.servers.kind import wait_for_version
from support.servers.ports import LOOPBACK, free_port
from support.servers.postgres_admin import PostgresAdmin, PostgresUnderTest
from support.servers.postgres_sql import read_version

_INITDB_SECONDS = 120.0
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0

#: Reads the ids of servers, of which the last one runs; an empty line says that none runs. An immediate stop, because
#: the data is not needed. Its processes may still write while the folder is removed: therefore the second try.
_CLEAN_UP = """
while read -r line; do server=$line; done
[ -z "$server" ] || kill -s QUIT "$server"
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$1/data/postmaster.pid" ] || break; sleep 0.2; done
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"""

_SETTINGS = {"max_connections": "100", "listen_addresses": LOOPBACK, "logging_collector": "off"}

#: Without fsync a crash of the server loses nothing, only a crash of the machine does, and no test makes one. It is in
#: the file, because ALTER SYSTEM cannot change what the command line sets, and a benchmark needs it on.
_FILE_SETTINGS = "fsync = off\n"

#: The settings of another server must not reach this one.
_FOREIGN_SETTINGS = ("PG", "POSTGRES", "NOTIFY_SOCKET")

_LOGIN = "quintain"


@contextlib.contextmanager
def private_cluster(programs: Path, environment: Mapping[str, str]) -> Iterator[PostgresUnderTest]:
    """A cluster of these programs, until the block ends. Raises `ServerUnavailable` where it does not start."""
    folder = Path(tempfile.mkdtemp(prefix="quintain-postgres-"))
    with contextlib.closing(_Cluster(programs, folder, environment, _owner())) as cluster:
        version = cluster.make()
        yield PostgresUnderTest(
            url=cluster.url,
            how=f"PostgreSQL {version}, a private cluster of {programs} at {LOOPBACK}:{cluster.port}",
            admin=PostgresAdmin(
                crash=lambda: cluster.stop(signal.SIGQUIT),
                stop=lambda: cluster.stop(signal.SIGINT),
                kill=cluster.kill,
                start=cluster.start,
            ),
        )


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
        self._cleanup = CleanupProcess(_CLEAN_UP, str(folder))
        self._server: subprocess.Popen[bytes] | None = None

    def make(self) -> str:
        """Create the data and start a server on it; returns its version."""
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
        with (self._folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(_FILE_SETTINGS)
        return self.start()

    def start(self) -> str:
        """Start a server on the data; returns its version when it answers."""
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(self._folder)}
        server = self._spawn(
            *self._as_owner(),
            str(self._programs / "postgres"),
            *("-D", str(self._folder / "data")),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        )
        try:
            return wait_for_version(
                lambda: read_version(self.url), timeout_seconds=_START_SECONDS, alive=lambda: server.poll() is None
            )
        except ServerUnavailable as error:
            printed = (self._folder / "output").read_text(encoding="utf-8", errors="replace")
            last_output = " / ".join(printed.splitlines()[-5:]) or "none"
            raise ServerUnavailable(f"{error}; the server's last output: {last_output}") from error

    def stop(self, how: signal.Signals) -> None:
        """Stop the server: SIGQUIT at once (``pg_ctl stop -m immediate``), SIGINT in order, after it closed all
        connections (``-m fast``)."""
        assert self._server is not None
        self._server.send_signal(how)
        self._server.wait(_STOP_SECONDS)
        self._cleanup.write_line("")

    def kill(self) -> None:
        """Send SIGKILL to the first process, and return when its children ended too: a new server refuses the data
        until then."""
        assert self._server is not None
        pid = self._server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        self.stop(signal.SIGKILL)
        ends = time.monotonic() + _STOP_SECONDS
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < ends:
            time.sleep(0.02)

    def close(self) -> None:
        """Stop it, and remove its folder."""
        self._cleanup.finish()
        if self._server is not None:
            self._server.wait()

    def _as_owner(self) -> list[str]:
        """The words that run a command as the owner of the data."""
        if self._owner is None:
            return []
        user, group = self._owner
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--"]

    def _spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        try:
            with (self._folder / "output").open("ab") as output:
                self._server = subprocess.Popen(
                    argv,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C must not reach it
                )
        except OSError as error:
            raise ServerUnavailable(f"{argv[0]} could not be started: {error.strerror}") from error
        self._cleanup.write_line(str(self._server.pid))
        return self._server


def _own_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN_SETTINGS)}
    return inherited | {"HOME": str(folder), "LC_ALL": "C", "TZ": "UTC"}


def _owner() -> tuple[int, int] | None:
    """User and group that shall own the cluster, as numbers; None for the current user, where that is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise ServerUnavailable("a PostgreSQL server may not be root, and there is neither a user postgres nor nobody here")
