"""What a stranger can cost the gateway: sizes, slow senders, floods. Real sockets, small limits."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import resource
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from quintain.contracts.credentials import SessionToken
from quintain.observe.health import OpsAddress, OpsEndpoints, serve_ops
from quintain_gateway import server
from quintain_gateway.metrics import GatewayMetrics
from quintain_gateway.server import MAX_LINGERING, READ_BYTES, LimitedH11Protocol, run_gateway
from quintain_gateway.settings import BindAddress, GatewayLimits
from support.gateway_client import (
    RawConnection,
    RawResponse,
    encode_body,
    open_gateway_client,
    open_raw_connection,
    request_head,
)
from support.memory_fleet import ADMIN_TOKEN, MemoryFleet, memory_fleet

CONFIG = "targets: {echo: {provider: mock}, slow: {provider: mock, delay_ms: 1000}}\n"
LIMITS = GatewayLimits(max_connections=50, header_timeout_seconds=0.6, body_timeout_seconds=0.6, max_body_bytes=100_000)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path_factory.mktemp("fleet"), CONFIG, limits=LIMITS) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def token(fleet: MemoryFleet) -> str:
    return (await fleet.open_session("echo", 500)).token


@pytest_asyncio.fixture(loop_scope="module")
async def socket(fleet: MemoryFleet) -> AsyncIterator[RawConnection]:
    async with open_raw_connection(fleet.gateway_url) as socket:
        yield socket


async def response_to(socket: RawConnection, data: bytes = b"") -> RawResponse:
    """The answer to what is sent."""
    await socket.write(data)
    answer = await socket.read_response()
    assert answer is not None
    return answer


def invoke_head(token: str, **headers: str) -> bytes:
    return request_head("POST", "/invoke", {"Authorization": f"Bearer {token}", **headers})


CHUNKS = b"".join(b"2710\r\n" + b"x" * 10_000 + b"\r\n" for _ in range(11))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Length": "100001"}, b""),
        ({"Content-Length": "100001", "Expect": "100-continue"}, b""),
        ({"Transfer-Encoding": "chunked"}, CHUNKS),
    ],
    ids=["announced", "waits to be asked", "without a length"],
)
async def test_a_body_that_is_too_large_is_413_before_all_of_it_came(
    socket: RawConnection, token: str, headers: dict[str, str], body: bytes
) -> None:
    answer = await response_to(socket, invoke_head(token, **headers) + body)
    assert (answer.status, answer.json["code"], answer.json["charged"]) == (413, "payload_too_large", False)


@pytest.mark.parametrize("path", ["/invoke", "/invokeBatch", "/sessions"])
async def test_who_has_no_token_that_opens_anything_hears_nothing_about_a_body(
    socket: RawConnection, path: str
) -> None:
    headers = {"Authorization": f"Bearer {SessionToken.mint().text}", "Content-Length": "100001"}
    answer = await response_to(socket, request_head("POST", path, headers))
    assert (answer.status, answer.json["error"]) == (401, "Unauthorized")


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}, {"Transfer-Encoding": "chunked"}])
@pytest.mark.parametrize("path", ["/invoke", "/v1/chat/completions", "/sessions"])
async def test_who_reads_only_after_sending_still_hears_why_it_was_refused(
    fleet: MemoryFleet, token: str, path: str, headers: dict[str, str]
) -> None:
    def send(token: str) -> tuple[int, int]:
        connection = http.client.HTTPConnection(fleet.gateway_url.removeprefix("http://"), timeout=30)
        pieces, chunked = (b"x" * 100_000 for _ in range(80)), "Transfer-Encoding" in headers
        body, sent = pieces if chunked else b"".join(pieces), {"Authorization": f"Bearer {token}", **headers}
        connection.request("POST", path, body, sent, encode_chunked=chunked)
        response = connection.getresponse()
        return response.status, len(response.read())

    # An admin's body is as large as anybody's, and who has no token hears nothing of it.
    known = ADMIN_TOKEN if path == "/sessions" else token
    assert (await asyncio.to_thread(send, known))[0] == 413
    status, size = await asyncio.to_thread(send, "nobody")
    assert (status, size > 0) == (401, True)


async def test_a_rejected_connection_that_sends_a_body_hears_why(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG, limits=GatewayLimits(max_connections=1)) as fleet:
        async with open_raw_connection(fleet.gateway_url), open_raw_connection(fleet.gateway_url) as rejected:
            await rejected.write(request_head("POST", "/invoke", {"Content-Length": "3000000"}))
            answer = await response_to(rejected, b"x" * 3_000_000)
        assert answer.status == 503


async def test_no_more_than_a_number_of_bytes_is_read_after_the_answer(
    socket: RawConnection, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER_BYTES", 500_000)
    monkeypatch.setattr(server, "LINGER_SECONDS", 3600)
    answer = await response_to(socket, invoke_head(token, **{"Content-Length": "100000000"}))
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    with pytest.raises(ConnectionError):
        while True:
            await socket.write(b"x" * 100_000)
            await asyncio.sleep(0.01)


async def test_the_rest_of_an_answered_body_is_not_heard_for_ever(
    socket: RawConnection, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.5)
    await response_to(socket, invoke_head(token, **{"Content-Length": "100000000"}))

    async def pour() -> None:
        while True:
            await socket.write(b"x" * 10_000)
            await asyncio.sleep(0.01)

    pouring = asyncio.create_task(pour())
    await socket.read_until_closed()
    await asyncio.wait([pouring])
    assert isinstance(pouring.exception(), ConnectionError)


async def test_a_body_at_the_limit_is_answered_and_its_connection_goes_on(fleet: MemoryFleet, token: str) -> None:
    async with open_gateway_client(fleet.gateway_url, token) as door:
        question = "x" * (LIMITS.max_body_bytes - len('{"question": ""}'))
        status, answer = await door.post("/invoke", {"question": question})
        assert (status, len(answer["rawText"])) == (200, len(question))
        assert (await door.post("/invoke", {"question": f"{question}x"}))[0] == 413
        assert (await door.get("/info"))[1]["callCount"] == 1


async def test_a_body_is_read_in_small_blocks(
    socket: RawConnection, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    data_received = LimitedH11Protocol.data_received

    def noting_size(protocol: LimitedH11Protocol, data: bytes) -> None:
        sizes.append(len(data))
        data_received(protocol, data)

    monkeypatch.setattr(LimitedH11Protocol, "data_received", noting_size)
    body = encode_body({"question": "x" * 2 * READ_BYTES})
    await socket.write(invoke_head(token, **{"Content-Length": str(len(body))}) + body)
    assert await socket.read_response() is not None
    assert max(sizes) <= READ_BYTES


class TransportOfAnotherLoop:
    """A transport that has no attributes of its own to set, as uvloop's has none."""

    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> object:
        if name == "max_size":
            raise AttributeError(name)
        return getattr(self._transport, name)


async def test_a_loop_whose_transports_have_no_block_size_is_served(
    fleet: MemoryFleet, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection_made, problems = LimitedH11Protocol.connection_made, list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, problem: problems.append(problem))

    def made_with(protocol: LimitedH11Protocol, transport: asyncio.Transport) -> None:
        connection_made(protocol, TransportOfAnotherLoop(transport))

    monkeypatch.setattr(LimitedH11Protocol, "connection_made", made_with)
    async with open_gateway_client(fleet.gateway_url, token) as door:
        assert (await door.post("/invoke", {"question": "x"}))[0] == 200
    loop.set_exception_handler(None)
    assert problems == []


async def test_a_slow_body_is_408(socket: RawConnection, token: str) -> None:
    answer = await response_to(socket, invoke_head(token, **{"Content-Length": "100"}) + b"{")
    assert (answer.status, answer.json["error"]) == (408, "The body did not arrive within 0.6 s")


async def test_a_slow_head_is_408_however_it_trickles(socket: RawConnection) -> None:
    async def trickle() -> None:
        for byte in request_head("GET", "/health/live", {"X": "y" * 1000}):
            await socket.write(bytes([byte]))
            await asyncio.sleep(0.05)

    trickling = asyncio.create_task(trickle())
    answer = await socket.read_response()
    trickling.cancel()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert answer.json["error"] == "The headers did not arrive within 0.6 s"


async def test_who_never_asks_anything_is_closed_without_a_word(socket: RawConnection) -> None:
    assert await socket.read_until_closed() == b""


async def test_a_second_slow_head_on_the_same_connection_is_408_too(socket: RawConnection) -> None:
    await socket.write(request_head("GET", "/health/live", {}))
    first = await socket.read_response()
    assert first.status == 200
    await asyncio.sleep(LIMITS.header_timeout_seconds + 0.2)  # between two requests it may take its time
    answer = await response_to(socket, b"GET /health/live HTTP/1.1\r\nX")
    assert answer.status == 408


@pytest.mark.parametrize("size", [17_000, 60_000, 600_000])
async def test_a_head_over_the_limit_is_431(socket: RawConnection, size: int) -> None:
    answer = await response_to(socket, request_head("GET", "/health/live", {"X": "y" * size}))
    assert (answer.status, answer.json["code"]) == (431, "head_too_large")


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX y: 1\r\n\r\n",
        b"GET /health/live HTTP/1.1\nHost: localhost\n\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: y\r\n z\r\n\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: y\r\n\tz\r\n\r\n",
        b"POST /invoke HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /invoke HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_400_and_closed(socket: RawConnection, junk: bytes) -> None:
    answer = await response_to(socket, junk + b"\r\n" * 2)
    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert await socket.read_until_closed() == b""


async def test_a_body_that_stops_being_http_is_refused_and_breaks_nothing(socket: RawConnection, token: str) -> None:
    answer = await response_to(socket, invoke_head(token, **{"Transfer-Encoding": "chunked"}) + b"no length\r\n")
    assert answer.status == 400


async def test_no_answer_is_made_of_the_requests_host(fleet: MemoryFleet) -> None:
    async with open_raw_connection(fleet.gateway_url) as socket:
        for path in ("/health/live", "/health/live/", "/sessions/", "/openapi.json", "//evil.example/info"):
            answer = await response_to(socket, f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n".encode())
            assert (answer.status, answer.json["code"]) == (421, "misdirected_request")
            assert b"evil" not in answer.body
            assert not any("evil" in value for value in answer.headers.values())


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8787", "127.0.0.1", "[::1]:80", "localhost.", "", "host.docker.internal:8787"],
)
async def test_the_gateways_own_names_are_accepted_with_any_port(socket: RawConnection, host: str) -> None:
    version = "1.1" if host else "1.0"
    answer = await response_to(
        socket, f"GET /health/live HTTP/{version}\r\n{f'Host: {host}' if host else 'X: y'}\r\n\r\n".encode()
    )
    assert answer.status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "host.docker.internal.evil.example",
        "evil.docker.internal",
        "[",
        "a@localhost",
        "127.0.0.1:80@evil.example",
        "127.0.0.1:80:90",
        "127.0.0.1, evil.example",
        ":80",
    ],
)
async def test_another_host_is_misdirected(socket: RawConnection, host: str) -> None:
    for path in ("/health/live", "/v1/models"):
        answer = await response_to(socket, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (answer.status, ("error" in answer.json)) == (421, True)
        assert isinstance(answer.json["error"], dict) == path.startswith("/v1")


async def test_a_session_has_a_number_of_requests_at_once(tmp_path: Path) -> None:
    limits = GatewayLimits(max_session_requests=3)
    async with memory_fleet(tmp_path, CONFIG, limits=limits) as fleet:
        token, other_token = [(await fleet.open_session("echo", 50)).token for _ in range(2)]
        async with (
            open_gateway_client(fleet.gateway_url, token) as door,
            open_gateway_client(fleet.gateway_url, other_token) as other,
        ):
            slow = {"question": "x", "target": "slow"}
            running = [asyncio.create_task(door.post("/invoke", slow)) for _ in range(3)]
            async with asyncio.timeout(10):
                while (await other.get("/info"))[0] == 200 and (await door.http.get("/info")).status_code == 200:
                    await asyncio.sleep(0.02)
            refused = await door.http.post("/invoke", json={"question": "x"})
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            assert (await other.post("/invoke", {"question": "x"}))[0] == 200
            assert [status for status, _ in await asyncio.gather(*running)] == [200] * 3
            for _ in range(5):  # nothing stays counted
                assert (await door.post("/invoke", {"question": "x"}))[0] == 200


async def test_large_bodies_share_one_memory_until_their_requests_end(tmp_path: Path) -> None:
    limits = GatewayLimits(max_body_bytes=1_000, max_large_bodies_bytes=10_000)
    async with memory_fleet(tmp_path, CONFIG, limits=limits) as fleet:
        token = (await fleet.open_session("echo", 50, max_body_bytes=2_000_000)).token
        large = {"question": "x" * 5_000}
        async with (
            open_raw_connection(fleet.gateway_url) as sender,
            open_gateway_client(fleet.gateway_url, token) as door,
        ):
            await sender.write(invoke_head(token, **{"Content-Length": "6000"}))
            async with asyncio.timeout(10):
                while (refused := await door.http.post("/invoke", json=large)).status_code == 200:
                    await asyncio.sleep(0.02)
            assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            assert (await door.post("/invoke", {"question": "x"}))[0] == 200
            await sender.write(b"x" * 6000)
            assert await sender.read_response() is not None
            for _ in range(5):  # nothing stays taken
                assert (await door.post("/invoke", large))[0] == 200


async def test_idle_connections_do_not_starve_a_listener_of_its_own_for_health(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet, contextlib.AsyncExitStack() as idle:
        metrics, limits = GatewayMetrics(), GatewayLimits(max_connections=3)
        endpoints = OpsEndpoints(metrics, lambda _: None)
        async with (
            serve_ops(OpsAddress(port=0), endpoints) as ops_url,
            run_gateway(fleet.running.bus, BindAddress(), limits, metrics=metrics, ops_endpoints=endpoints) as url,
        ):
            for _ in range(3):
                await idle.enter_async_context(open_raw_connection(url))
            async with open_gateway_client(url) as public, open_gateway_client(ops_url) as private:
                async with asyncio.timeout(10):
                    while (await public.http.get("/health/live")).status_code != 503:
                        await asyncio.sleep(0.02)
                assert await private.get("/health/live") == (200, {"status": "live"})
                assert await private.get("/health/ready") == (200, {"status": "ready"})
                assert "quintain_gateway_connections 3.0" in (await private.http.get("/metrics")).text


async def test_a_flood_beyond_the_limit_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG, limits=LIMITS) as fleet:
        await flood(fleet, (await fleet.open_session("echo", 500)).token)


async def flood(fleet: MemoryFleet, token: str) -> None:
    asked = invoke_head(token, **{"Content-Length": "39"}) + b'{"question": "first", "target": "slow"}'

    async def knock() -> int:
        try:
            async with open_raw_connection(fleet.gateway_url) as socket:
                await socket.write(asked)
                answer = await socket.read_response()
        except ConnectionError:
            answer = None
        return 0 if answer is None else answer.status

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = await asyncio.gather(*(knock() for _ in range(300)))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    counts = Counter(answers)
    # 0 is a connection cut without a word: there are more of them than may linger.
    assert counts[200] == LIMITS.max_connections
    assert counts[503] >= MAX_LINGERING
    assert counts[200] + counts[503] + counts[0] == 300
    assert grown_kib < 100 * 1024
    async with open_gateway_client(fleet.gateway_url, token) as door:
        assert await door.read_call_count() == LIMITS.max_connections
        async with asyncio.timeout(30):
            while "quintain_gateway_connections 1.0\n" not in (metrics := (await door.http.get("/metrics")).text):
                await asyncio.sleep(0.02)
    assert 'quintain_gateway_turned_away_total{reason="too many connections"} 250.0\n' in metrics
