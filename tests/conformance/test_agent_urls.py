"""What a program calls models with: a URL of its own, which stands for the session of its running call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from quintain.client.client import Client
from quintain.contracts.agents import Turn
from quintain.contracts.invoke import InvokeRequest
from support.memory_fleet import MemoryFleet, memory_fleet
from support.sandbox import sandbox_refusal

CONFIG = """
targets:
  model: {provider: mock, response: "an opinion", price: {per_call: 0.01}}
  other: {provider: mock, response: "never"}
  agent: &agent
    provider: command
    protocol: jsonl
    command: [python, agent.py]
    child_session: {targets: [model], max_calls: 8}
  thrifty:
    <<: *agent
    child_session: {targets: [model], max_cost_usd: 0.035}
"""

#: Calls the model as often as it is asked to, and answers with what came; or with its environment.
AGENT = """
import json, os, sys, urllib.error, urllib.request

def call(url, headers, model):
    message = {"role": "user", "content": "well?"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 9}).encode()
    headers = {"content-type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code

env = os.environ
# Some clients take no URL with a path of its own: the key says as much.
ROOT = env["OPENAI_BASE_URL"].rsplit("/", 2)[0]
KEYED = ROOT + "/v1/chat/completions", {"authorization": "Bearer " + env["OPENAI_API_KEY"]}
OPENAI = env["OPENAI_BASE_URL"] + "/chat/completions", {"authorization": "Bearer " + env["OPENAI_API_KEY"]}
ANTHROPIC = env["ANTHROPIC_BASE_URL"] + "/v1/messages", {"x-api-key": env["ANTHROPIC_API_KEY"], "anthropic-version": ""}
for line in sys.stdin:
    times, model = json.loads(json.loads(line)["prompt"])
    came = [call(*(KEYED, OPENAI, ANTHROPIC)[n % 3], model) for n in range(times)]
    print(json.dumps({"type": "answer", "text": json.dumps([came, env["OPENAI_BASE_URL"]])}), flush=True)
    if model == "hold":
        import time; time.sleep(60)
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    (tmp_path / "agent.py").write_text(AGENT)
    async with memory_fleet(tmp_path, CONFIG, {"PATH": "/usr/bin:/bin"}) as running:
        yield running


async def ask(client: Client, times: int, model: str = "model", turn: Turn | None = None) -> tuple[list[int], str]:
    request = InvokeRequest(question=json.dumps([times, model]), turn=turn)
    statuses, url = json.loads((await client.send(request)).raw_text)
    return statuses, url


async def call_url(url: str, key: str = "") -> int:
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": "model", "messages": [{"role": "user", "content": "well?"}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/chat/completions", json=body, headers=headers) as response,
    ):
        return response.status


async def test_twenty_calls_are_held_by_the_limits_of_the_child_session(fleet: MemoryFleet) -> None:
    async with fleet.client("agent", max_calls=50) as client:
        statuses, _ = await ask(client, 20)
        assert statuses == [200] * 8 + [402] * 12
        assert (await client.get_info()).call_count == 9
        assert (await ask(client, 1, "other"))[0] == [403]
    async with fleet.client("thrifty", max_calls=50, max_cost_usd=1) as client:
        statuses, _ = await ask(client, 20)
        assert statuses == [200] * 3 + [402] * 17


async def test_the_budget_of_the_caller_holds_too(fleet: MemoryFleet) -> None:
    async with fleet.client("agent", max_calls=4) as client:
        statuses, _ = await ask(client, 5)
        assert statuses == [200, 200, 200, 402, 402]
        assert (await client.get_info()).call_count == 4


async def test_a_url_is_its_programs_own_and_stands_for_nothing_between_its_calls(fleet: MemoryFleet) -> None:
    async with fleet.client("agent", max_calls=50) as client:
        turns = [Turn(conversation_id="c", number=number) for number in (1, 2)]
        first, url = await ask(client, 1, turn=turns[0])
        assert await call_url(url) == 401
        second, again = await ask(client, 1, turn=turns[1])
        assert (first, second, again) == ([200], [200], url)
        _, other = await ask(client, 1)
        assert other != url
        before = (await client.get_info()).call_count
        for wrong in (url, other, url.replace("/v1", "x/v1"), url.rpartition("/")[0].rpartition("/")[0] + "/v1"):
            assert await call_url(wrong) == 401
        root, key, _ = url.rsplit("/", 2)
        assert await call_url(f"{root}/v1", key) == 401
        assert (await client.get_info()).call_count == before


async def test_in_a_sandbox_a_program_reaches_its_gateway(tmp_path: Path) -> None:
    if (refusal := sandbox_refusal()) is not None:
        pytest.skip(refusal)
    (tmp_path / "agent.py").write_text(AGENT)
    tmp_path.chmod(0o755)  # a sandbox of root runs as another user
    config = CONFIG.replace("protocol: jsonl", "protocol: jsonl\n    sandbox: bwrap")
    async with memory_fleet(tmp_path, config, {"PATH": "/usr/bin:/bin"}) as fleet, fleet.client("agent") as client:
        assert (await ask(client, 9))[0] == [200] * 8 + [402]
