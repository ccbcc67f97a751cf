"""A RabbitMQ of our own: its folder, its ports, its name, on the loopback only, and gone without a trace.

It shares nothing with a broker that the machine may run for others: not the Erlang cookie, not the name
service (epmd), not one configuration file. It needs no root, and takes little: two schedulers, no plugin.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quintain.errors import BrokerUnavailable
from quintain.testing.commands import run_command
from quintain.testing.handshake import Address, wait_for_version
from quintain.testing.ports import LOOPBACK, free_port
from quintain.testing.under_test import BrokerAdmin, BrokerUnderTest
from quintain.testing.watcher import Watcher

#: Two cores that start another node at the same time have been seen to take 20 s.
_START_SECONDS = 120.0
_CONTROL_SECONDS = 60.0

#: Reads the ids of process groups; at the end kills them and removes the folder. An orderly stop would take
#: seconds, and keep in order what nobody will read. What dies may still be writing: hence the second try.
_CLEAN_UP = """
while read -r group; do groups="$groups -$group"; done
kill -s KILL -- $groups
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"""

#: A write-ahead log of 64 MiB, in place of 512, keeps the node small.
_CONFIGURATION = "listeners.tcp.1 = {host}:{port}\nraft.wal_max_size_bytes = 67108864\n"

#: The settings of another node, or of systemd's, must not reach ours.
_FOREIGN_SETTINGS = ("RABBITMQ_", "ERL_", "NOTIFY_SOCKET")


@contextlib.contextmanager
def private_node(server: Path, environment: Mapping[str, str]) -> Iterator[BrokerUnderTest]:
    """A node of this ``rabbitmq-server``, until left. Raises `BrokerUnavailable` where it does not start."""
    node = _Node(server, Path(tempfile.mkdtemp(prefix="quintain-broker-")), environment)
    try:
        version = node.start()
        yield BrokerUnderTest(
            url=f"amqp://guest:guest@{node.address}/",
            how=f"RabbitMQ {version}, a private node of {server} at {node.address}",
            admin=BrokerAdmin(address=node.address, control=node.rabbitmqctl),
        )
    finally:
        node.end()


class _Node:
    """The processes of one node: the broker, and the name service (epmd) through which its tools find it."""

    def __init__(self, server: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.address = Address(LOOPBACK, free_port())
        self._server = server
        self._folder = folder
        self._epmd_port = free_port()
        self._environment = _node_environment(folder, environment, epmd_port=self._epmd_port)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watcher = Watcher(_CLEAN_UP, str(folder))

    def start(self) -> str:
        """The version of the broker, once it answers and has every feature that it can have."""
        configuration = _CONFIGURATION.format(host=LOOPBACK, port=self.address.port)
        (self._folder / "rabbitmq.conf").write_text(configuration, encoding="ascii")
        (self._folder / "enabled_plugins").write_text("[].\n", encoding="ascii")
        (self._folder / "environment.conf").touch()
        (self._folder / "conf.d").mkdir()
        try:
            return self._start_processes()
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{error}; the node's last words: {self._last_words()}") from error

    def _start_processes(self) -> str:
        epmd = self._spawn("epmd", "-port", str(self._epmd_port), "-address", LOOPBACK)
        # The broker starts a name service of its own, which nobody would end, where it finds none.
        while epmd.poll() is None and not _listens(self._epmd_port):
            time.sleep(0.02)
        broker = self._spawn(str(self._server))
        version = wait_for_version(self.address, timeout_seconds=_START_SECONDS, alive=lambda: broker.poll() is None)
        # At-least-once dead lettering needs the flag stream_queue on 3.10.
        self.rabbitmqctl(("enable_feature_flag", "all"))
        return version

    def rabbitmqctl(self, arguments: Sequence[str]) -> str:
        """What the node's own tool prints. Raises `BrokerUnavailable` where it fails."""
        tool = str(self._server.with_name("rabbitmqctl"))
        return run_command(
            [tool, "--quiet", *arguments], environment=self._environment, timeout_seconds=_CONTROL_SECONDS
        )

    def end(self) -> None:
        """Kill it, and remove its folder."""
        self._watcher.finish()
        for process in self._processes:
            process.wait()

    def _spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        try:
            with (self._folder / "output").open("ab") as output:
                process = subprocess.Popen(  # noqa: S603 -- the words are ours, and no shell reads them
                    argv,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # a group of its own, to be killed as one; Ctrl-C is not for it
                )
        except OSError as error:
            raise BrokerUnavailable(f"{argv[0]} could not be started: {error.strerror}") from error
        self._watcher.tell(str(process.pid))
        self._processes.append(process)
        return process

    def _last_words(self) -> str:
        lines: list[str] = []
        for log in [self._folder / "output", *sorted((self._folder / "log").glob("*.log"))]:
            lines += log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return "\n".join(lines) or "none"


def _node_environment(folder: Path, environment: Mapping[str, str], *, epmd_port: int) -> dict[str, str]:
    """Everything RabbitMQ reads or writes, in our folder; what is not named would be the machine's own."""
    inherited = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN_SETTINGS)}
    loopback_only = f"-kernel inet_dist_use_interface {{{LOOPBACK.replace('.', ',')}}}"
    return inherited | {
        "HOME": str(folder),  # the Erlang cookie
        "ERL_EPMD_ADDRESS": LOOPBACK,
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_NODENAME": f"{folder.name}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONFIG_FILES": str(folder / "conf.d"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "environment.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 2:2 {loopback_only}",
        "RABBITMQ_CTL_ERL_ARGS": f"+S 1:1 {loopback_only}",
    }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
