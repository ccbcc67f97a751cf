"""Proxies over HTTP beside Quintain's gateway: LiteLLM's, without its database, and AgentV's.

Quintain is measured twice: over RabbitMQ with a ledger on disk, each service a process, and as `quintain up`, one
process with the memory transport and such a ledger. LiteLLM's answers are its mock responses; AgentV's proxy is that of
@agentv/core, as its code grader starts it, under node, with a counter in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import gateway
from calls import Options
from closed_loop import Round, at_once, measure
from gateway import ProxyUnderTest, quintain_up
from harness import NotStarted, Result, compare, process, running_fleet
from http_client import open_clients, request_for
from quintain.settings import environment
from servers import ClientTool, ServerUnavailable, cache_folder, find_node, free_port, npm_package

HERE = Path(__file__).parent
AGENTV, AGENTV_VERSION = "@agentv/core", "4.42.4"
LITELLM = ClientTool(name="bench-litellm", version="1.100.0", pypi="litellm[proxy]")
LITELLM_KEY = "sk-benchmark"
MOCK = {"model": "openai/none", "api_key": "none", "mock_response": "fine"}
MOCKS: Mapping[str, Mapping[str, object]] = {"bench": MOCK, "slower": {**MOCK, "mock_delay": 1}}

QUESTION = "How are you?"
LONG_CALLS, BATCH = 100, 50


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the path and the body of its request, and over how many connections.

    With ``together`` so many requests at once are measured as one; a request is ``calls`` calls.
    """

    name: str
    path: str
    body: Mapping[str, object]
    connections: int
    together: int = 1
    calls: int = 1


def chat(model: str) -> dict[str, object]:
    """The body of a request of OpenAI's chat completions."""
    return {"model": model, "messages": [{"role": "user", "content": QUESTION}]}


CHAT, INVOKE = "/v1/chat/completions", "/invoke"
SLOW_BATCH = {"requests": [{"question": QUESTION, "target": "slow"}] * BATCH}
OPENAI_ROWS = (
    *(Row(f"connections: {count}", CHAT, chat("bench"), count) for count in (1, 32, 256)),
    Row(f"{LONG_CALLS} calls of 1 s at once", CHAT, chat("slower"), LONG_CALLS, together=LONG_CALLS),
)
AGENTV_ROWS = (
    *(Row(f"connections: {count}", INVOKE, {"question": QUESTION}, count) for count in (1, 32, 256)),
    Row(f"a batch of {BATCH} × 50 ms", "/invokeBatch", SLOW_BATCH, 1, calls=BATCH),
)


@dataclass(frozen=True, slots=True)
class HttpSide:
    """Requests of one row to one proxy."""

    name: str
    proxy: ProxyUnderTest
    row: Row

    @property
    def processes(self) -> Mapping[str, int]:
        """The processes behind the address."""
        return self.proxy.processes

    async def measure(self, in_flight: int, seconds: float) -> Round:
        """Keep so many requests in flight, over connections of this round: a proxy may close one that waits."""
        request = request_for(self.proxy.url, self.proxy.token, self.row.path, self.row.body)
        async with open_clients(self.proxy.url, request, self.row.connections) as call:
            together = self.row.together
            return await measure(at_once(call, together), in_flight, seconds, together * self.row.calls)


@contextlib.asynccontextmanager
async def over_rabbitmq(options: Options) -> AsyncIterator[ProxyUnderTest]:
    """The gateway of a fleet."""
    port, folder = free_port(), options.folder / "fleet"
    folder.mkdir()
    with running_fleet(options.url, folder, gateway.CONFIG, gateway_port=port, broker_pid=options.broker_pid) as fleet:
        token = (await fleet.open_session()).token
        yield ProxyUnderTest(f"http://127.0.0.1:{port}", token, fleet.pids)


@contextlib.contextmanager
def litellm_proxy(
    folder: Path, models: Mapping[str, Mapping[str, object]] = MOCKS, env: Mapping[str, str] | None = None
) -> Iterator[ProxyUnderTest]:
    """LiteLLM's proxy, with mock responses if not said. Raises `ServerUnavailable` or `NotStarted`."""
    LITELLM.install(environment(), print)
    config = {
        "model_list": [{"model_name": name, "litellm_params": params} for name, params in models.items()],
        "general_settings": {"master_key": LITELLM_KEY},
    }
    (folder / "litellm.yaml").write_text(json.dumps(config))
    port, programs = free_port(), LITELLM.folder(cache_folder(environment())) / "bin"
    words = [str(programs / "litellm"), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port"]
    # It would fetch its price map from the network.
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **(env or {})}
    with process([*words, str(port)], "Uvicorn running", program=str(programs / "python"), **variables) as pid:
        yield ProxyUnderTest(f"http://127.0.0.1:{port}", LITELLM_KEY, {"proxy": pid})


@contextlib.contextmanager
def agentv_proxy(folder: Path) -> Iterator[ProxyUnderTest]:
    """AgentV's proxy, as long as its grader runs. Raises `ServerUnavailable` or `NotStarted` where there is none."""
    node = find_node(environment(), print)
    modules = npm_package(AGENTV, AGENTV_VERSION, environment(), print)
    told, script = folder / "proxy", modules.parent / "agentv_peer.mjs"
    shutil.copyfile(HERE / "agentv_peer.mjs", script)  # node looks for packages beside the script
    running = subprocess.Popen([node, str(script), str(told)], start_new_session=True)
    try:
        ends = time.monotonic() + 60
        while not (told.exists() and told.read_text().count("\n") == 2):
            if running.poll() is not None or time.monotonic() > ends:
                raise NotStarted("AgentV's proxy did not start")
            time.sleep(0.05)
        url, token = told.read_text().split()
        yield ProxyUnderTest(url, token, {"proxy": running.pid})
    finally:
        os.killpg(running.pid, signal.SIGTERM)  # the grader's own process too
        running.wait(30)


Start = Callable[[Path], AbstractContextManager[ProxyUnderTest]]


async def compare_proxies(
    options: Options, table: str, rows: Sequence[Row], peer: tuple[str, Start], missing: dict[str, str]
) -> list[Result]:
    """The rows of one API: ours twice, and the peer."""
    results = []
    async with contextlib.AsyncExitStack() as stack:
        proxies = {
            "Quintain over RabbitMQ": await stack.enter_async_context(over_rabbitmq(options)),
            "Quintain up": stack.enter_context(quintain_up(options.folder)),
        }
        name, start = peer
        try:
            proxies[name] = stack.enter_context(start(options.folder))
        except (ServerUnavailable, NotStarted) as error:
            missing[name] = str(error)
        for row in rows:
            print(f"{table}, {row.name}", flush=True)
            sides = [HttpSide(name, proxy, row) for name, proxy in proxies.items()]
            in_flight = 1 if row.together > 1 else row.connections
            seconds = 0.1 if row.together > 1 else options.seconds
            results += await compare(table, row.name, sides, in_flight, seconds, options.rounds)
    return results


async def openai_api(options: Options, missing: dict[str, str]) -> list[Result]:
    """OpenAI's chat completions, beside LiteLLM's proxy."""
    peer = (f"LiteLLM {LITELLM.version}", litellm_proxy)
    return await compare_proxies(options, "OpenAI's API over HTTP", OPENAI_ROWS, peer, missing)


async def agentv_api(options: Options, missing: dict[str, str]) -> list[Result]:
    """AgentV's API, beside its own proxy."""
    peer = (f"AgentV {AGENTV_VERSION}", agentv_proxy)
    return await compare_proxies(options, "AgentV's API over HTTP", AGENTV_ROWS, peer, missing)
