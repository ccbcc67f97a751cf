"""The test servers themselves: private ones end with the process that started them, and containers are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from quintain.settings import environment
from support.servers.chooser import running_server
from support.servers.kind import ServerKind
from support.servers.postgres import POSTGRES
from support.servers.rabbitmq import RABBITMQ

#: Starts a server, prints its URL, and waits to be killed.
STARTER = """
import time
from quintain.settings import environment
from support.servers import chooser, {module}
with chooser.running_server({module}.{name}, environment(), lambda _: None) as server:
    print(server.url, flush=True)
    time.sleep(600)
"""

KINDS = pytest.mark.parametrize("kind", [RABBITMQ, POSTGRES], ids=["rabbitmq", "postgres"])


def answers(kind: ServerKind[Any], url: str) -> bool:
    try:
        kind.read_version(url)
    except OSError:
        return False
    return True


def processes_with(folder: Path) -> bool:
    """Whether a process has the folder's path in its arguments or its environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text:
            return True
    return False


@KINDS
def test_a_private_server_is_on_the_loopback_alone_and_ends_when_its_starter_is_killed(kind: ServerKind[Any]) -> None:
    if kind.packages.find(environment()) is None and os.geteuid() != 0:
        pytest.skip(f"no {kind.product} here, and only root may install one: Docker serves the other tests")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # the user postgres must get to its own folder beneath
    more = {kind.url_variable: "", "QUINTAIN_TEST_BROKER": "server", "TMPDIR": str(folder)}
    module = "rabbitmq" if kind is RABBITMQ else "postgres"
    with subprocess.Popen(
        [sys.executable, "-c", STARTER.format(module=module, name=module.upper())],
        env=environment() | more | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        url = starter.stdout.readline().strip()
        assert answers(kind, url)
        assert not answers(kind, url.replace("127.0.0.1", "127.0.0.2"))
        assert [each.stat().st_mode & 0o077 for each in folder.iterdir()] == [0]
        starter.send_signal(signal.SIGKILL)
    while answers(kind, url) or [*folder.iterdir()] or processes_with(folder):
        time.sleep(0.1)  # the test's own timeout bounds it
    folder.rmdir()


@pytest.mark.docker
@pytest.mark.timeout(600)
@KINDS
def test_where_docker_answers_a_container_is_taken_stopped_started_and_removed(kind: ServerKind[Any]) -> None:
    reported: list[str] = []
    variables = environment() | {kind.url_variable: "", "QUINTAIN_TEST_BROKER": "container"}
    with running_server(kind, variables, reported.append) as server:
        assert f"a container of {kind.image.name}" in reported[-1]
        stop, start = ("stop_app", "start_app") if kind is RABBITMQ else ("crash", "start")
        getattr(server.admin, stop)()
        assert not answers(kind, server.url)
        getattr(server.admin, start)()
        assert answers(kind, server.url)
    assert not answers(kind, server.url)
