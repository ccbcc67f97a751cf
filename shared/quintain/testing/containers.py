"""Containers for tests, through testcontainers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from quintain.errors import QuintainError
from quintain.testing.commands import run_command
from quintain.testing.watcher import Watcher

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

_ENGINE_SECONDS = 10.0
_PULL_SECONDS = 300.0


def require_engine(environment: Mapping[str, str]) -> str:
    """The version of the Docker engine that answers. Raises `QuintainError` where none does."""
    return run_command(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        environment=environment,
        timeout_seconds=_ENGINE_SECONDS,
    )


def require_image(image: str, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Have the image, pulled where it is not there. Raises `QuintainError` where neither."""
    with contextlib.suppress(QuintainError):
        run_command(["docker", "image", "inspect", image], environment=environment, timeout_seconds=_ENGINE_SECONDS)
        return
    say(f"pulling {image} (at most {_PULL_SECONDS:g} s)")
    run_command(["docker", "pull", "--quiet", image], environment=environment, timeout_seconds=_PULL_SECONDS)


def new_container(image: str) -> DockerContainer:
    """A container that is not started yet. Raises `QuintainError` without testcontainers or an engine for it."""
    try:
        # By name, and only now: testcontainers is for development, and the library must import without it.
        importlib.import_module("testcontainers.core.config").testcontainers_config.ryuk_disabled = True
        module = importlib.import_module("testcontainers.core.container")
    except ImportError as error:
        raise QuintainError(
            f"a container needs the package testcontainers (pip install testcontainers): {error}"
        ) from error
    try:
        new: DockerContainer = module.DockerContainer(image)
    except Exception as error:  # the errors of docker, testcontainers and requests have no common root
        raise QuintainError(f"testcontainers cannot use this Docker engine: {error}") from error
    return new


def removal() -> Watcher:
    """Removes the container whose id it is told, however we end.

    testcontainers would leave this to an image of its own, which a machine without a registry has not.
    """
    return Watcher('read -r container; cat; docker rm --force --volumes "$container"')
