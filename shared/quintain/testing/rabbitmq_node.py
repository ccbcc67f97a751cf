"""RabbitMQ nodes of our own: their folder, their ports, their names, on the loopback only, and gone without a trace.

They share nothing with a broker that the machine may run for others: not the Erlang cookie, not the name
service (epmd), not one configuration file. They need no root, and take little: two schedulers each, no plugin.
"""

from __future__ import annotations

import contextlib
import os
import signal
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

#: The cluster that a new node looks for: no tool needs to be run to join it.
_JOINING = """cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = {name}
"""

#: The settings of another node, or of systemd's, must not reach ours.
_FOREIGN_SETTINGS = ("RABBITMQ_", "ERL_", "NOTIFY_SOCKET")


@contextlib.contextmanager
def private_node(server: Path, environment: Mapping[str, str]) -> Iterator[BrokerUnderTest]:
    """A node of this ``rabbitmq-server``, until left. Raises `BrokerUnavailable` where it does not start."""
    with home_of_nodes(server, environment) as home:
        node = Node(home, "node")
        version = node.start()
        yield BrokerUnderTest(
            url=node.url,
            how=f"RabbitMQ {version}, a private node of {server} at {node.address}",
            admin=node.admin,
        )


@contextlib.contextmanager
def home_of_nodes(server: Path, environment: Mapping[str, str]) -> Iterator[Home]:
    """Where nodes may live, until left: then they are killed, and nothing is left of them."""
    home = Home(server, environment)
    try:
        yield home
    finally:
        home.end()


class Home:
    """What nodes have in common: a folder with the Erlang cookie, and the name service (epmd) by which they, and
    their tools, find each other."""

    def __init__(self, server: Path, environment: Mapping[str, str]) -> None:
        self.server = server
        self.folder = Path(tempfile.mkdtemp(prefix="quintain-broker-"))
        self.epmd_port = free_port()
        self.environment = {
            name: value for name, value in environment.items() if not name.startswith(_FOREIGN_SETTINGS)
        } | {"HOME": str(self.folder), "ERL_EPMD_ADDRESS": LOOPBACK, "ERL_EPMD_PORT": str(self.epmd_port)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watcher = Watcher(_CLEAN_UP, str(self.folder))

    def start_names(self) -> None:
        """Start the name service, unless it runs; returns when it listens."""
        if self._processes:
            return
        epmd = self.spawn(self.environment, "epmd", "-port", str(self.epmd_port), "-address", LOOPBACK)
        # A broker starts a name service of its own, which nobody would end, where it finds none.
        while epmd.poll() is None and not _listens(self.epmd_port):
            time.sleep(0.02)

    def spawn(self, environment: Mapping[str, str], *argv: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with this home. Raises `BrokerUnavailable`."""
        try:
            with (self.folder / "output").open("ab") as output:
                process = subprocess.Popen(  # noqa: S603 -- the words are ours, and no shell reads them
                    argv,
                    env=dict(environment),
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

    def end(self) -> None:
        """Kill all that runs, and remove the folder."""
        self._watcher.finish()
        for process in self._processes:
            process.wait()


class Node:
    """One broker in a `Home`, which may be killed and started again on the same data. ``joins`` is the name of the
    node whose cluster it joins when it first starts."""

    def __init__(self, home: Home, name: str, *, joins: str | None = None) -> None:
        self.address = Address(LOOPBACK, free_port())
        self.url = f"amqp://guest:guest@{self.address}/"
        self.name = f"{home.folder.name}-{name}@localhost"
        self.admin = BrokerAdmin(address=self.address, control=self.rabbitmqctl)
        self._home = home
        self._folder = home.folder / name
        self._environment = _node_environment(home, self._folder, self.name)
        self._broker: subprocess.Popen[bytes] | None = None
        self._write_configuration(joins)

    def begin(self) -> None:
        """Start it, and wait for nothing."""
        self._home.start_names()
        self._broker = self._home.spawn(self._environment, str(self._home.server))

    def start(self) -> str:
        """Start it; its version, once it answers and has every feature that it can have."""
        self.begin()
        version = self.answers()
        # At-least-once dead lettering needs the flag stream_queue on 3.10.
        self.rabbitmqctl(("enable_feature_flag", "all"))
        return version

    def answers(self) -> str:
        """Its version as soon as it answers. Raises `BrokerUnavailable` where it ended, or took too long."""
        broker = self._broker
        assert broker is not None, "it was begun"
        try:
            return wait_for_version(self.address, timeout_seconds=_START_SECONDS, alive=lambda: broker.poll() is None)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{error}; the node's last words: {self._last_words()}") from error

    def kill(self) -> None:
        """SIGKILL: it, and whatever it started, at once."""
        assert self._broker is not None, "it was begun"
        os.killpg(self._broker.pid, signal.SIGKILL)
        self._broker.wait()

    def rabbitmqctl(self, arguments: Sequence[str]) -> str:
        """What the node's own tool prints. Raises `BrokerUnavailable` where it fails."""
        tool = str(self._home.server.with_name("rabbitmqctl"))
        return run_command(
            [tool, "--quiet", *arguments], environment=self._environment, timeout_seconds=_CONTROL_SECONDS
        )

    def _write_configuration(self, joins: str | None) -> None:
        (self._folder / "conf.d").mkdir(parents=True)
        text = _CONFIGURATION.format(host=LOOPBACK, port=self.address.port)
        if joins is not None:
            text += _JOINING.format(name=joins)
        (self._folder / "rabbitmq.conf").write_text(text, encoding="ascii")
        (self._folder / "enabled_plugins").write_text("[].\n", encoding="ascii")
        (self._folder / "environment.conf").touch()

    def _last_words(self) -> str:
        lines: list[str] = []
        for log in [self._home.folder / "output", *sorted((self._folder / "log").glob("*.log"))]:
            lines += log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return "\n".join(lines) or "none"


def _node_environment(home: Home, folder: Path, name: str) -> dict[str, str]:
    """Everything RabbitMQ reads or writes, in our folder; what is not named would be the machine's own."""
    loopback_only = f"-kernel inet_dist_use_interface {{{LOOPBACK.replace('.', ',')}}}"
    return home.environment | {
        "RABBITMQ_NODENAME": name,
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
