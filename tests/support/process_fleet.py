"""A fleet of real processes behind a real broker, started as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pika

from quintain.contracts.session import SessionOpened
from quintain.topology import METADATA_TOPOLOGY, target_topology
from support.command_line import CommandLine, command_line, command_server, run_command

ADMIN_TOKEN = "an admin token for tests"


class Process:
    """One process of the command line; its output is in a file, so that no pipe ever blocks it."""

    def __init__(
        self, args: Sequence[str], env: dict[str, str], folder: Path, *, program: str = "quintain_cli"
    ) -> None:
        self.args = args
        self.log = folder / f"{args[-1].strip('-')}-{secrets.token_hex(3)}.log"
        with Path(os.devnull).open("rb") as stdin, self.log.open("wb") as log:
            self._process = command_server().start(args, env, folder, (stdin, log, log), program=program)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def peak_bytes(self) -> int:
        """Its largest resident size so far."""
        (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return 1024 * int(kib)

    def wait_killed(self, *, seconds: float = 60) -> None:
        """Wait until it has died of a SIGKILL."""
        code = self._process.wait(seconds)
        assert code == -signal.SIGKILL, f"{self.args} ended with {code}:\n{self.read_output()}"

    def read_output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_output(self, phrase: str, *, seconds: float = 100) -> None:
        """Wait until it has said this."""
        ends = time.monotonic() + seconds
        while phrase not in self.read_output():
            assert self._process.poll() is None, (
                f"{self.args} ended with {self._process.returncode}:\n{self.read_output()}"
            )
            assert time.monotonic() < ends, f"{self.args} did not say {phrase!r} in {seconds} s:\n{self.read_output()}"
            time.sleep(0.05)

    def wait(self, *, seconds: float) -> int:
        """Wait until it has ended by itself; its exit code."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL: no last word."""
        self._process.kill()

    def stop(self, *, seconds: float = 30) -> int:
        """SIGTERM, and its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except TimeoutError:
            self.kill()
            raise AssertionError(f"{self.args} did not stop within {seconds} s:\n{self.read_output()}") from None


@dataclass
class ProcessFleet:
    """Processes behind one broker, with a configuration and a state folder of their own."""

    broker_url: str
    folder: Path
    extra_env: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QUINTAIN_", "PYTHONDONT"))},
            "QUINTAIN_BROKER_URL": self.broker_url,
            "QUINTAIN_STATE_DIR": str(self.folder / "state"),
            "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN,
            "PYTHONUNBUFFERED": "1",
            **self.extra_env,
        }

    @property
    def ledger_url(self) -> str:
        """The ledger of its metadata services."""
        return self.extra_env.get("QUINTAIN_LEDGER_URL", f"sqlite://{self.folder / 'state' / 'ledger.sqlite3'}")

    def start(self, *args: str) -> Process:
        process = Process(args, self.env, self.folder)
        self.processes.append(process)
        return process

    def start_service(self, service: str) -> Process:
        process = self.start("serve", service)
        process.wait_for_output(f"ready  {service}")
        return process

    def start_services(self, *services: str) -> list[Process]:
        """Start them together, and wait until all answer."""
        started = [self.start("serve", service) for service in services]
        for service, process in zip(services, started, strict=True):
            process.wait_for_output(f"ready  {service}")
        return started

    def quintain(self, *args: str, env: dict[str, str] | None = None, ok: bool = True) -> str:
        """Run a command to its end; its standard output."""
        result = run_command(args, {**self.env, **(env or {})}, self.folder)
        assert not ok or result.code == 0, f"{args}: exit {result.code}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def open_session(self, default_target: str, max_calls: int) -> SessionOpened:
        args = ("session", "open", "--default-target", default_target, "--max-calls", str(max_calls), "--json")
        return SessionOpened.from_wire(self.quintain(*args))

    def info(self, token: str) -> dict[str, object]:
        parsed: dict[str, object] = json.loads(self.quintain("info", "--json", env={"QUINTAIN_SESSION_TOKEN": token}))
        return parsed


@contextlib.contextmanager
def process_fleet(broker_url: str, config: str, *, targets: Sequence[str]) -> Iterator[ProcessFleet]:
    """A fleet with this configuration; whatever was left of it is ended, whatever it left at the broker deleted."""
    delete_protocol_queues(broker_url, targets)
    with tempfile.TemporaryDirectory(prefix="quintain-fleet-") as name:
        folder = Path(name)
        (folder / "quintain.yaml").write_text(config)
        fleet = ProcessFleet(broker_url, folder)
        try:
            yield fleet
        finally:
            for process in fleet.processes:
                process.kill()
            delete_protocol_queues(broker_url, targets)


@contextlib.contextmanager
def fleet_shell(
    broker_url: str,
    config: str,
    *,
    targets: Sequence[str],
    services: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[CommandLine]:
    """A shell before a broker with a fleet of these services, in whose folder the configuration is; ``variables`` are
    for services alone."""
    with process_fleet(broker_url, config, targets=targets) as fleet:
        fleet.extra_env |= variables or {}
        fleet.start_services(*services)
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            yield replace(shell, service_env=fleet.extra_env)


def delete_protocol_queues(broker_url: str, targets: Sequence[str]) -> None:
    """Delete the protocol's queues: their names are constants, so one broker serves one fleet at a time."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel = connection.channel()
    for queue in (*METADATA_TOPOLOGY.queues, *(queue for name in targets for queue in target_topology(name).queues)):
        channel.queue_delete(queue.name)
    connection.close()
