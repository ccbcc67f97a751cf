"""Other people's tools before a gateway, behind which a scripted model records what it is asked.

Tests of a tool with an environment of its own have the marker ``tool``; `make clients` runs them. At the end each tool
that was not run is named, with the reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clients.tool_session import CONFIG, ToolSession
from quintain.settings import environment
from support.client_tools import TOOLS, ClientTool, reason_not_to_run
from support.memory_fleet import memory_fleet
from support.model_server import model_server
from support.servers.errors import ServerUnavailable

_NOT_RUN = pytest.StashKey[dict[str, str]]()


def _tool_of(item: pytest.Item) -> ClientTool | None:
    marker = item.get_closest_marker("tool")
    return None if marker is None else TOOLS[marker.args[0]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    not_run = config.stash[_NOT_RUN] = {}
    deselected = []
    for item in items:
        tool = _tool_of(item)
        if tool is not None and (reason := reason_not_to_run(tool, environment())) is not None:
            not_run[tool.name] = reason
            deselected.append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if worker == "gw0":  # all workers collect the same tests
        summary = config.pluginmanager.getplugin("quintain-summary")
        for name, reason in config.stash.get(_NOT_RUN, {}).items():
            summary.add("clients", f"not run: {name} ({reason})")


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> ClientTool:
    """The tool of this test, installed; where it cannot be, the test is skipped and the tool is named as not run."""
    wanted = _tool_of(request.node)
    assert wanted is not None, "a test that asks for a tool is marked with its name"
    summary = request.config.pluginmanager.getplugin("quintain-summary")
    try:
        wanted.install(environment(), summary.report)
    except ServerUnavailable as reason:
        request.config.stash[_NOT_RUN][wanted.name] = f"it cannot be installed: {reason}"
        pytest.skip(f"{wanted.name} cannot be installed: {reason}")
    return wanted


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[ToolSession]:
    """A folder, and a session of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    async with (
        model_server() as provider,
        memory_fleet(tmp_path, CONFIG.replace("{url}", provider.url)) as fleet,
    ):
        yield ToolSession(fleet, provider, folder)
