"""docker-compose.yml as a user starts it, under a project name and ports of its own."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.command_line import CommandResult, clean_environment
from support.servers.ports import free_port

REPOSITORY = Path(__file__).parents[2]

#: How often the engine is asked how its containers are, in seconds.
POLL_SECONDS = 0.5

#: Services of ours, and how many containers each has.
SERVICE_REPLICAS = {"metadata": 2, "worker": 2, "gateway": 1, "host": 1}


@dataclass(frozen=True)
class ComposeFleet:
    """The fleet of docker-compose.yml."""

    project: str
    env: Mapping[str, str]

    def docker(self, *args: str, code: int | None = 0, seconds: float = 300) -> CommandResult:
        """``docker`` with these words, to its end, with this exit code (None: any)."""
        done = subprocess.run(
            ["docker", *args],
            cwd=REPOSITORY,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        result = CommandResult(args, done.returncode, done.stdout.strip(), done.stderr)
        assert code in {None, result.code}, result
        return result

    def start(self, *args: str) -> subprocess.Popen[str]:
        """``docker`` with these words, under way."""
        return subprocess.Popen(
            ["docker", *args],
            cwd=REPOSITORY,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def evaluation_args(self, folder: Path, *args: str) -> tuple[str, ...]:
        """The words of ``docker`` that run the evaluation in this folder, on the fleet; results beside it."""
        mount = ("--volume", f"{folder}:/srv/evaluation")
        run = ("run", "/srv/evaluation/eval.yaml", "--output", "/srv/evaluation/results", *args)
        return ("compose", "run", "--rm", "--no-TTY", *mount, "run", *run)

    def container_ids(self, service: str) -> list[str]:
        """The containers of a service, in the order of their names, running or not."""
        listed = self.docker("compose", "ps", "--all", "--format", "json", service).stdout
        rows = [json.loads(line) for line in listed.splitlines()]
        return [row["ID"] for row in sorted(rows, key=lambda row: row["Name"])]

    def inspect(self, container: str) -> dict[str, object]:
        """What the engine tells of a container."""
        details = json.loads(self.docker("inspect", container).stdout)[0]
        assert isinstance(details, dict)
        return details

    def is_healthy(self, container: str) -> bool:
        """Whether its health check passes."""
        return self.docker("inspect", "--format", "{{.State.Health.Status}}", container).stdout == "healthy"

    def wait_until_healthy(self, *containers: str, seconds: float = 120) -> None:
        """Wait until all of these answer, those of every service where none is named."""
        waiting = list(
            containers
            or [one for service in (*SERVICE_REPLICAS, "rabbitmq", "postgres") for one in self.container_ids(service)]
        )
        ends = time.monotonic() + seconds
        while waiting := [one for one in waiting if not self.is_healthy(one)]:
            assert time.monotonic() < ends, self.docker("compose", "logs", "--no-color", "--tail", "20").stdout
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def compose_fleet() -> Iterator[ComposeFleet]:
    """The fleet, up from nothing with one command; at the end nothing of it is left but the images."""
    ports = {f"QUINTAIN_{name}_PORT": str(free_port()) for name in ("AMQP", "MANAGEMENT", "GATEWAY")}
    project = f"quintain-test-{secrets.token_hex(3)}"
    # Neither an .env nor a docker-compose.override.yml that somebody keeps in this checkout changes the fleet.
    ours = {"COMPOSE_PROJECT_NAME": project, "COMPOSE_FILE": "docker-compose.yml", "COMPOSE_DISABLE_ENV_FILE": "1"}
    env = {**builder_environment(), **ports, **ours}
    fleet = ComposeFleet(project, env)
    try:
        build_images(fleet)
        fleet.docker("compose", "up", "--detach")
        yield fleet
    finally:
        fleet.docker("compose", "--profile", "run", "down", "--volumes", "--timeout", "2", code=None)


def build_images(fleet: ComposeFleet) -> None:
    """Build the images of this checkout: those of an older one may be here, and `up` builds none of a profile."""
    fleet.docker("compose", "--profile", "run", "build", seconds=540)


def builder_environment() -> dict[str, str]:
    """The environment in which this machine builds images: where the engine has no buildx, by its older builder, which
    keeps no two builds from doing the same work at once, and reaches the packages over the machine's own network."""
    env = clean_environment()
    if subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode == 0:
        return env
    return {**env, "DOCKER_BUILDKIT": "0", "COMPOSE_PARALLEL_LIMIT": "1", "QUINTAIN_BUILD_NETWORK": "host"}


if __name__ == "__main__":
    build_images(ComposeFleet("quintain", builder_environment()))
