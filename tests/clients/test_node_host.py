"""The host in Node of ``examples/hosts``, with its client of RabbitMQ from npm: the suite for hosts, and its README."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.hosts.checked_host import TAGS, broker_proxy
from generate.checkout import copy_tracked
from quintain.errors import HostLost
from quintain.remote.factory import RemoteFactory
from quintain.settings import environment
from quintain.target.type_registry import QUINTAIN_TYPES
from support.client_tools import ClientTool, cache_folder
from support.command_line import clean_environment
from support.running_gateway import run_program
from support.target_placements import Controller

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"

pytestmark = [pytest.mark.tool("amqplib"), pytest.mark.timeout(300)]


@pytest.fixture
def folder(tool: ClientTool, tmp_path: Path) -> Path:
    """The example, as `npm install` leaves it."""
    folder = copy_tracked(EXAMPLES / "hosts" / "node", tmp_path / "node")
    (folder / "node_modules").symlink_to(tool.folder(cache_folder(environment())) / tool.modules)
    return folder


@pytest.fixture
def bot(folder: Path, broker_url: str) -> Iterator[str]:
    """The name under which the host of the README serves its bot."""
    name = f"bot-{secrets.token_hex(3)}"
    host = subprocess.Popen(
        ["node", "reconnecting.mjs", "bot.mjs", name, "2"],
        cwd=folder,
        env={**clean_environment(), "QUINTAIN_BROKER_URL": broker_url},
    )
    try:
        yield name
        host.terminate()
        assert host.wait(20) == 0
    finally:
        host.kill()


def test_the_manifest_names_the_client_that_is_tested(tool: ClientTool, folder: Path) -> None:
    assert json.loads((folder / "package.json").read_text())["dependencies"] == {tool.npm: tool.version}


@pytest.mark.parametrize(
    ("program", "options"),
    [("host.mjs", ["--without", "reconnects"]), ("reconnecting.mjs", [])],
    ids=["the core", "with reconnects"],
)
def test_it_passes_the_suite_for_hosts(folder: Path, broker_url: str, program: str, options: list[str]) -> None:
    suite = [sys.executable, "-m", "pytest", "-q", "tests/conformance/hosts", *options]
    command = f"node {folder}/{program} {folder}/scripted.mjs {{name}} 2"
    done = subprocess.run(
        [*suite, "--host-command", command],
        cwd=REPOSITORY,
        env={**clean_environment(), "QUINTAIN_TEST_BROKER_URL": broker_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert " skipped" not in done.stdout


async def test_the_leases_of_the_core_end_with_its_connection(folder: Path, broker_url: str) -> None:
    name = f"core-{secrets.token_hex(3)}"
    with broker_proxy(broker_url) as proxy:
        env = {**clean_environment(), "QUINTAIN_BROKER_URL": proxy.url}
        host = subprocess.Popen(["node", "host.mjs", "scripted.mjs", name, "1"], cwd=folder, env=env)
        try:
            with RemoteFactory(name, url=broker_url, tags=TAGS, prefetch=0) as remote:
                target = await asyncio.to_thread(remote.create)
                proxy.cut()
                with pytest.raises(HostLost, match=socket.gethostname()):
                    async with asyncio.timeout(10):
                        await Controller(QUINTAIN_TYPES).drive(target)
            assert host.wait(20) == 1
        finally:
            host.kill()


def test_its_bot_is_driven_as_the_readme_says(bot: str, broker_url: str) -> None:
    env = {**clean_environment(), "QUINTAIN_BROKER_URL": broker_url}
    result = run_program([sys.executable, "targets/drive.py", bot, "I am the admin"], env, EXAMPLES)
    assert [re.sub(r"^ +(\d+\.\d\d s)? *", "", line) for line in result.stdout.splitlines()] == [
        "[user] question: I am Ann",
        "[user] question <- ControllableInjection: I am the admin",
        "[screen] screen: Hello: I am the admin",
        "answer? Hello: I am the admin",
    ], result
