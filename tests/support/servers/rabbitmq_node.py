"""Private RabbitMQ nodes, alone or as a cluster: own folder, ports and node names, on the loopback only.

They share nothing with a broker that the machine may run for others: not the Erlang cookie, not the name service
(epmd), no configuration file. They need no root, and are small: two schedulers each, no plugins.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.servers.amqp_handshake import read_version
from support.servers.cleanup import CleanupProcess
from support.servers.commands import run_command
from support.servers.errors import ServerUnavailable
from support.servers.kind import wait_for_version
from support.servers.ports import LOOPBACK, free_port
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

#: Two cores that start another node at the same time have been seen to take 20 s.
_START_SECONDS = 120.0
_CONTROL_SECONDS = 60.0

#: Reads the ids of process groups; at the end kills them and removes the folder. An orderly stop would take seconds,
#: and the data is not needed. A dying process may still write into the folder: therefore the second try.
_CLEAN_UP = """
while read -r group; do groups="$groups -$group"; done
kill -s KILL -- $groups
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"""

#: A write-ahead log of 64 MiB, in place of 512, keeps the node small.
_CONFIGURATION = """listeners.tcp.1 = {host}:{port}
raft.wal_max_size_bytes = 67108864
max_message_size = 16777216
"""

#: The cluster that a new node joins when it first starts.
_JOINING = """cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = {name}
"""

#: The settings of another node, or of systemd, must not reach this one.
_FOREIGN_SETTINGS = ("RABBITMQ_", "ERL_", "NOTIFY_SOCKET")


@contextlib.contextmanager
def private_node(server: Path, environment: Mapping[str, str]) -> Iterator[BrokerUnderTest]:
    """A node of this ``rabbitmq-server``, until the block ends. Raises `ServerUnavailable` where it does not start."""
    with contextlib.closing(NodeGroup(server, environment)) as group:
        node = Node(group, "node")
        how = f"RabbitMQ {node.start()}, a private node of {server} at {node.address}"
        yield BrokerUnderTest(url=node.url, how=how, admin=node.admin)


@dataclass(frozen=True, slots=True)
class ClusterUnderTest:
    """A cluster, of which each node may be killed and started again. ``url`` names all its nodes."""

    nodes: tuple[Node, ...]

    @property
    def url(self) -> str:
        """The nodes' URLs, as `QUINTAIN_BROKER_URL` takes them."""
        return ",".join(node.url for node in self.nodes)

    @property
    def admin(self) -> BrokerAdmin:
        """The first node's, which sees all of the cluster."""
        return self.nodes[0].admin


@contextlib.contextmanager
def private_cluster(server: Path, environment: Mapping[str, str], *, size: int = 3) -> Iterator[ClusterUnderTest]:
    """A cluster of nodes of this ``rabbitmq-server``, until the block ends. Raises `ServerUnavailable` where it does
    not start."""
    with contextlib.closing(NodeGroup(server, environment)) as group:
        first = Node(group, "node1")
        first.start()
        others = [Node(group, f"node{number}", joins=first.name) for number in range(2, size + 1)]
        for node in others:
            node.begin()
        for node in others:
            node.answers()
        yield ClusterUnderTest((first, *others))


class NodeGroup:
    """What the nodes of one cluster share: a folder with the Erlang cookie, and the name service (epmd) by which they
    and ``rabbitmqctl`` find each other."""

    def __init__(self, server: Path, environment: Mapping[str, str]) -> None:
        self.server = server
        self.folder = Path(tempfile.mkdtemp(prefix="quintain-broker-"))
        self.epmd_port = free_port()
        self.environment = {
            name: value for name, value in environment.items() if not name.startswith(_FOREIGN_SETTINGS)
        } | {"HOME": str(self.folder), "ERL_EPMD_ADDRESS": LOOPBACK, "ERL_EPMD_PORT": str(self.epmd_port)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._cleanup = CleanupProcess(_CLEAN_UP, str(self.folder))

    def start_epmd(self) -> None:
        """Start the name service, unless it runs; returns when it listens."""
        if self._processes:
            return
        epmd = self.spawn(self.environment, "epmd", "-port", str(self.epmd_port), "-address", LOOPBACK)
        # Without it, a node would start a name service of its own, which would not end with the node.
        while epmd.poll() is None and not _listens(self.epmd_port):
            time.sleep(0.02)

    def spawn(self, environment: Mapping[str, str], *argv: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with this group. Raises `ServerUnavailable`."""
        try:
            with (self.folder / "output").open("ab") as output:
                process = subprocess.Popen(
                    argv,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # a process group, to be killed as one; Ctrl-C must not reach it
                )
        except OSError as error:
            raise ServerUnavailable(f"{argv[0]} could not be started: {error.strerror}") from error
        self._cleanup.write_line(str(process.pid))
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill all processes, and remove the folder."""
        self._cleanup.finish()
        for process in self._processes:
            process.wait()


class Node:
    """One broker, which may be killed and started again on the same data. ``joins`` is the name of the node whose
    cluster it joins when it first starts."""

    def __init__(self, group: NodeGroup, name: str, *, joins: str | None = None) -> None:
        self._port = free_port()
        self.address = f"{LOOPBACK}:{self._port}"
        self.url = f"amqp://guest:guest@{self.address}/"
        self.name = f"{group.folder.name}-{name}@localhost"
        self.admin = BrokerAdmin(url=self.url, run_erlang=self.run_erlang)
        self._group = group
        self._folder = group.folder / name
        self._environment = _node_environment(group, self._folder, self.name)
        self._broker: subprocess.Popen[bytes] | None = None
        self._write_configuration(joins)

    def begin(self) -> None:
        """Start it, without waiting until it answers."""
        self._group.start_epmd()
        self._broker = self._group.spawn(self._environment, str(self._group.server))

    def start(self) -> str:
        """Start it, and return its version when it answers and has all feature flags."""
        self.begin()
        version = self.answers()
        # At-least-once dead lettering needs the flag stream_queue on 3.10.
        self.admin.evaluate("ok = rabbit_feature_flags:enable_all()")
        return version

    def answers(self) -> str:
        """Return its version as soon as it has started. Raises `ServerUnavailable` where it ended or took too long."""
        broker = self._broker
        assert broker is not None, "begin() comes first"
        try:
            version = wait_for_version(
                lambda: read_version(self.url), timeout_seconds=_START_SECONDS, alive=lambda: broker.poll() is None
            )
            # It listens before it has started, and enables no plugin until then.
            self.admin.evaluate("ok = rabbit:await_startup()")
            return version
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}; the node's last output: {self._last_output()}") from error

    def kill(self) -> None:
        """Send SIGKILL to it and to all processes that it started."""
        assert self._broker is not None, "begin() comes first"
        os.killpg(self._broker.pid, signal.SIGKILL)
        self._broker.wait()

    def run_erlang(self, program: str) -> str:
        """Return what an Erlang expression prints, and its value; see `BrokerAdmin`. Raises `ServerUnavailable`."""
        erl_call = shutil.which("erl_call", path=self._environment.get("PATH"))
        if erl_call is None:
            tool = str(self._group.server.with_name("rabbitmqctl"))
            return run_command(
                [tool, "--quiet", "eval", program], environment=self._environment, timeout_seconds=_CONTROL_SECONDS
            )
        return run_command(
            [erl_call, "-sname", self.name, "-fetch_stdout", "-e"],
            environment=self._environment,
            timeout_seconds=_CONTROL_SECONDS,
            stdin=program,
        )

    def _write_configuration(self, joins: str | None) -> None:
        (self._folder / "conf.d").mkdir(parents=True)
        text = _CONFIGURATION.format(host=LOOPBACK, port=self._port)
        if joins is not None:
            text += _JOINING.format(name=joins)
        (self._folder / "rabbitmq.conf").write_text(text, encoding="ascii")
        (self._folder / "enabled_plugins").write_text("[].\n", encoding="ascii")
        (self._folder / "environment.conf").touch()

    def _last_output(self) -> str:
        lines: list[str] = []
        for log in [self._group.folder / "output", *sorted((self._folder / "log").glob("*.log"))]:
            lines += log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return "\n".join(lines) or "none"


def _node_environment(group: NodeGroup, folder: Path, name: str) -> dict[str, str]:
    """Variables that put everything RabbitMQ reads or writes into the node's folder."""
    loopback_only = f"-kernel inet_dist_use_interface {{{LOOPBACK.replace('.', ',')}}}"
    return group.environment | {
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
