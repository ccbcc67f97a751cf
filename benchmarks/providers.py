"""Calls to a provider over HTTP: a bare aiohttp loop, the `openai` SDK, LiteLLM's proxy, and Quintain.

The provider is a process of its own that answers at once (`provider_stub.py`), and whose CPU is not counted. A question
and its answer have the size of the row. Everybody parses the JSON that comes.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import openai

from calls import Options
from gateway import ProxyUnderTest
from harness import Fleet, Measured, NotStarted, Result, Side, compare, process, running_fleet
from http_peers import CHAT, LITELLM, HttpSide, litellm_proxy
from http_peers import Row as HttpRow
from quintain.contracts.invoke import InvokeRequest
from servers import ServerUnavailable, free_port

HERE = Path(__file__).parent
SIZES = {"1kB": 1_000, "100kB": 100_000}
TABLE = "a provider over HTTP, calls in flight"
AIOHTTP, OPENAI, QUINTAIN, GATEWAY = "aiohttp loop", "openai SDK", "Quintain", "Quintain over HTTP"
LITELLM_SIDE = f"LiteLLM {LITELLM.version}"


class Row(NamedTuple):
    """How many calls are in flight, and what they are: a question and an answer of this size."""

    in_flight: int
    size: str = "1kB"
    is_streamed: bool = False
    is_tls: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.in_flight}, {self.size}{', streamed' * self.is_streamed}{', TLS' * self.is_tls}"

    @property
    def target(self) -> str:
        """The name of its target."""
        return target_name(self.size, is_tls=self.is_tls)

    def body(self, model: str) -> dict[str, object]:
        """The body of its request."""
        messages = [{"role": "user", "content": "x" * SIZES[self.size]}]
        stream = {"stream": True, "stream_options": {"include_usage": True}} if self.is_streamed else {}
        return {"model": model, "messages": messages, **stream}


#: Whole and streamed at all levels; the larger ones, and those over TLS, at one.
ROWS = tuple(
    Row(in_flight, size, is_streamed, is_tls)
    for is_streamed in (False, True)
    for in_flight, size, is_tls in (
        *((level, "1kB", False) for level in (1, 32, 256)),
        (32, "100kB", False),
        (32, "1kB", True),
        (32, "100kB", True),
    )
)


def target_name(size: str, *, is_tls: bool) -> str:
    """The name of the target of such answers."""
    return f"bench-{size}{'-tls' * is_tls}"


class Stubs(NamedTuple):
    """The providers' addresses by target, and their certificate's file."""

    urls: dict[str, str]
    certificate: str


@contextlib.contextmanager
def running_stubs(folder: Path) -> Iterator[Stubs]:
    """A provider without TLS and one with it."""
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stub"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*words.split(), *names], check=True, capture_output=True)
    plain, tls, program = free_port(), free_port(), str(HERE / "provider_stub.py")
    with process([program, str(plain)], "ready"), process([program, str(tls), certificate, key], "ready"):
        urls = {
            target_name(size, is_tls=is_tls): f"{root}/{length}/v1"
            for is_tls, root in ((False, f"http://127.0.0.1:{plain}"), (True, f"https://127.0.0.1:{tls}"))
            for size, length in SIZES.items()
        }
        yield Stubs(urls, certificate)


@contextlib.asynccontextmanager
async def aiohttp_side(row: Row, url: str, trusted: ssl.SSLContext) -> AsyncIterator[Side]:
    """Requests without any client library of OpenAI's."""
    data = json.dumps(row.body("stub")).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=trusted)) as http:

        async def call() -> None:
            async with http.post(f"{url}/chat/completions", data=data, headers=headers) as response:
                if not row.is_streamed:
                    json.loads(await response.read())
                    return
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        json.loads(line[6:])

        yield Side(name=AIOHTTP, call=call)


@contextlib.asynccontextmanager
async def openai_side(row: Row, url: str, trusted: ssl.SSLContext) -> AsyncIterator[Side]:
    """The vendor's client, with its defaults but for the number of its connections."""
    http = openai.DefaultAsyncHttpxClient(verify=trusted)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http) as client:
        body: dict[str, Any] = row.body("stub")

        async def call() -> None:
            answer = await client.chat.completions.create(**body)
            if row.is_streamed:
                async for _ in answer:
                    pass

        yield Side(name=OPENAI, call=call)


@contextlib.asynccontextmanager
async def quintain_side(row: Row, fleet: Fleet) -> AsyncIterator[Side]:
    """The SDK over AMQP: a gateway takes no part."""
    processes = {name: pid for name, pid in fleet.pids.items() if name != "gateway"}
    request = InvokeRequest(question="x" * SIZES[row.size], target=row.target)
    on_chunk = (lambda _: None) if row.is_streamed else None
    async with fleet.client(row.target) as client:
        yield Side(name=QUINTAIN, call=lambda: client.send(request, on_chunk=on_chunk), processes=processes)


async def compare_providers(options: Options, rows: Sequence[Row] = ROWS, only: Collection[str] = ()) -> list[Result]:
    """All sides of these rows in turn, or ``only`` those named; LiteLLM is left out where it cannot be started."""
    results = []
    with contextlib.ExitStack() as stack:
        stubs = stack.enter_context(running_stubs(options.folder))
        common = {"provider": "openai", "model": "stub", "max_concurrency": 1000}
        config = json.dumps({"targets": {name: {**common, "base_url": url} for name, url in stubs.urls.items()}})
        trust, trusted = {"SSL_CERT_FILE": stubs.certificate}, ssl.create_default_context(cafile=stubs.certificate)
        port = 0 if only and GATEWAY not in only else free_port()
        fleet = stack.enter_context(
            running_fleet(
                options.url, options.folder, config, gateway_port=port, broker_pid=options.broker_pid, env=trust
            )
        )
        proxies = {}
        if port:
            token = (await fleet.open_session("bench-1kB")).token
            proxies[GATEWAY] = ProxyUnderTest(f"http://127.0.0.1:{port}", token, fleet.pids)
        if not only or LITELLM_SIDE in only:
            models = {
                name: {"model": "openai/stub", "api_key": "none", "api_base": url} for name, url in stubs.urls.items()
            }
            try:
                proxies[LITELLM_SIDE] = stack.enter_context(litellm_proxy(options.folder, models, trust))
            except (ServerUnavailable, NotStarted) as error:
                print(f"NOT MEASURED: {LITELLM_SIDE}: {error}", flush=True)
        for row in rows:
            async with contextlib.AsyncExitStack() as opened:
                url = stubs.urls[row.target]
                peers = [openai_side(row, url, trusted), aiohttp_side(row, url, trusted)]
                if row.is_streamed:  # the first is what the others are compared with, as the aims are said
                    peers.reverse()
                sides: list[Measured]
                sides = [await opened.enter_async_context(side) for side in (*peers, quintain_side(row, fleet))]
                request = HttpRow(row.name, CHAT, row.body(row.target), row.in_flight)
                sides += [HttpSide(name, proxy, request) for name, proxy in proxies.items()]
                sides = [side for side in sides if not only or side.name in only]
                print(f"{TABLE}, {row.name}", flush=True)
                results += await compare(TABLE, row.name, sides, row.in_flight, options.seconds, options.rounds)
    return results
