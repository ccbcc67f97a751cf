"""The options of a target host: where its instances run, for how long a process is used, and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from quintain.errors import ConfigError
from quintain_host.instances import InstanceFactory, factory_fingerprint, load_factory
from quintain_host.supervisor import slot_environment


class Isolation(StrEnum):
    """Where the instance of a slot runs: in a process of its own, or in a thread of this process."""

    PROCESS = "process"
    THREAD = "thread"


class ProcessUse(StrEnum):
    """For how long a slot's process is used: for one lease after another, or for one lease."""

    PER_SLOT = "per-slot"
    PER_LEASE = "per-lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The command line options of a host."""

    factory_reference: str
    name: str
    slots: int
    isolation: Isolation | None
    process: ProcessUse
    grace_seconds: float
    boot_seconds: float
    env_from: tuple[str, ...]
    env: tuple[str, ...]
    depends_on: tuple[str, ...]

    def load_factory(self) -> tuple[InstanceFactory, str]:
        """Import the factory, and read its fingerprint. Raises `ConfigError`."""
        factory = load_factory(self.factory_reference, Path.cwd())
        return factory, factory_fingerprint(self.factory_reference, Path.cwd(), self.depends_on)

    def choose_isolation(self, factory: InstanceFactory) -> Isolation:
        """Return where instances run; variables and a use are for processes. Raises `ConfigError`."""
        needs_process = bool(self.env_from or self.env) or self.process is ProcessUse.PER_LEASE
        if self.isolation is Isolation.THREAD and needs_process:
            raise ConfigError(
                "--env, --env-from and --process per-lease are for --isolation process: a thread is in this process"
            )
        if needs_process:
            return Isolation.PROCESS
        return self.isolation or default_isolation(factory, self.slots)

    def slot_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the slots' processes. Raises `ConfigError`."""
        pairs = [text.partition("=") for text in self.env]
        if unnamed := [name for name, separator, _ in pairs if not name or not separator]:
            raise ConfigError(f"--env: {unnamed[0]!r} has no value: write it as NAME=VALUE")
        return slot_environment(env, self.env_from, {name: value for name, _, value in pairs})


def default_isolation(factory: InstanceFactory, slots: int) -> Isolation:
    """Return the isolation if none is requested: processes if there are several slots, else a thread.

    A factory can choose threads with an attribute ``isolation`` of "thread".
    """
    if slots == 1 or getattr(factory, "isolation", None) == Isolation.THREAD.value:
        return Isolation.THREAD
    return Isolation.PROCESS
