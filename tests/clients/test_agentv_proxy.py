"""AgentV's own proxy: what is recorded of it for the tests of the gateway is what it answers.

To record again after a change of the requests, run this file with ``QUINTAIN_RECORD_SNAPSHOTS=1``. AgentV's command
runs in tests/acceptance/test_agentv_parity.py; its client is not published on npm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from clients.tool_session import PROGRAMS
from quintain.settings import environment
from support.agentv_requests import RECORDED, REQUESTS, answer_of
from support.client_tools import ClientTool, cache_folder
from support.snapshots import hold

pytestmark = [pytest.mark.tool("agentv-core"), pytest.mark.timeout(700)]


@contextlib.asynccontextmanager
async def agentv_proxies(tool: ClientTool, folder: Path) -> AsyncIterator[list[tuple[str, str]]]:
    """A proxy for each request, by its URL and token."""
    told = folder / "told"
    told.mkdir()
    wanted = [{"maxCalls": request.max_calls, "targets": request.targets} for request in REQUESTS]
    (folder / "list.json").write_text(json.dumps(wanted))
    (folder / "node_modules").symlink_to(tool.folder(cache_folder(environment())) / tool.modules)
    script = shutil.copy(PROGRAMS / "agentv_proxies.mjs", folder)
    process = await asyncio.create_subprocess_exec(
        "node", str(script), str(folder / "list.json"), str(told), start_new_session=True
    )
    try:
        async with asyncio.timeout(120):
            while not all((told / str(number)).exists() for number in range(len(wanted))):
                assert process.returncode is None, "AgentV's proxies did not start"
                await asyncio.sleep(0.1)
        lines = [(told / str(number)).read_text().split() for number in range(len(wanted))]
        yield [(url, token) for url, token in lines]
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # its graders are programs of their own
        await process.wait()


async def test_its_proxy_answers_as_it_is_recorded(tool: ClientTool, tmp_path: Path) -> None:
    async with agentv_proxies(tool, tmp_path) as proxies, httpx2.AsyncClient(timeout=60) as http:
        answers = {
            request.name: await answer_of(http, url, token, request)
            for request, (url, token) in zip(REQUESTS, proxies, strict=True)
        }
    hold(RECORDED, answers)
