"""AgentV's proxy API, spoken to over a real socket, case by case."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.memory_fleet import MemoryFleet, memory_fleet

CONFIG = """
targets:
  judge: {provider: mock, response: "yes"}
  alt: {provider: mock, response: "from alt"}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
  slow: {provider: mock, delay_ms: 100}
"""


class Door:
    """One session's HTTP client."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def get(self, path: str) -> tuple[int, Any]:
        response = await self._http.get(path)
        return response.status_code, response.json() if response.content else None

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await self._http.post(path, content=content)
        return response.status_code, response.json()

    async def count(self) -> int:
        return int((await self.get("/info"))[1]["callCount"])


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        yield fleet


@pytest.fixture
async def door(fleet: MemoryFleet) -> AsyncIterator[Door]:
    token = (await fleet.open("judge", 5)).token
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=fleet.gateway_url, headers=headers) as http:
        yield Door(http)


async def test_info_serves_every_era(door: Door) -> None:
    names = ["alt", "broken", "judge", "slow"]
    assert await door.get("/info") == (
        200,
        {
            "targetName": "judge",
            "providerLabel": "judge",
            "maxCalls": 5,
            "callCount": 0,
            "availableTargets": names,
            "availableProviderLabels": names,
        },
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"question": "ok?"}, "yes"),
        ({"question": "ok?", "target": "alt"}, "from alt"),
        ({"question": "ok?", "provider": "alt"}, "from alt"),
        ({"question": "ok?", "target": None, "systemPrompt": None, "evalCaseId": None, "attempt": None}, "yes"),
        ({"question": " ", "somethingNew": {"a": 1}}, "yes"),
    ],
)
async def test_an_invoke_answers_under_both_names(door: Door, body: dict[str, object], text: str) -> None:
    status, answer = await door.post("/invoke", body)
    assert (status, answer["rawText"]) == (200, text)
    assert answer["output"] == answer["outputMessages"] == [{"role": "assistant", "content": text}]
    assert answer["tokenUsage"].keys() == {"input", "output"}
    assert await door.count() == 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"question": "x", "target": "nope"}, "Unknown target 'nope'. Available: alt, broken, judge, slow"),
        ({"question": "x", "provider": "nope"}, "Unknown provider 'nope'. Available: alt, broken, judge, slow"),
        ({"question": "x", "target": ""}, "Unknown target ''. Available: alt, broken, judge, slow"),
        ({}, "Missing required field: question"),
        ({"question": ""}, "Missing required field: question"),
        ({"question": 7}, "Missing required field: question"),
        ([], "Missing required field: question"),
        (b"null", "Missing required field: question"),
        (b"", "The body is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"{", None),
        ({"question": "x", "attempt": "two"}, None),
    ],
)
async def test_a_bad_invoke_is_400_and_costs_nothing(door: Door, body: object, sentence: str | None) -> None:
    status, answer = await door.post("/invoke", body)
    assert (status, answer["charged"]) == (400, False)
    assert sentence is None or answer["error"] == sentence
    assert await door.count() == 0


async def test_a_providers_failure_is_500_and_costs_one(door: Door) -> None:
    status, answer = await door.post("/invoke", {"question": "x", "target": "broken"})
    assert (status, answer["code"], answer["charged"]) == (500, "provider_error", True)
    assert await door.count() == 1


async def test_the_limit_is_429_with_agentvs_sentence(door: Door) -> None:
    for _ in range(5):
        assert (await door.post("/invoke", {"question": "x"}))[0] == 200
    status, answer = await door.post("/invoke", {"question": "x"})
    assert (status, answer["error"]) == (429, "Max calls exceeded (limit: 5)")
    assert (await door.post("/invoke", {}))[0] == 400


async def test_a_batch_keeps_its_order_and_loses_nothing_to_a_bad_item(door: Door) -> None:
    items = [{"question": "a", "target": "alt"}, None, {"question": "b", "target": "nope"}, {}, {"question": "c"}]
    status, answer = await door.post("/invokeBatch", {"requests": items})
    assert status == 200
    assert [item["rawText"] for item in answer["responses"]] == [
        "from alt",
        "Error: Missing required field: question",
        "Error: Unknown target 'nope'. Available: alt, broken, judge, slow",
        "Error: Missing required field: question",
        "yes",
    ]
    assert answer["responses"][1]["output"] == []
    assert await door.count() == 2


async def test_a_batch_is_reserved_all_or_nothing(door: Door) -> None:
    assert (await door.post("/invoke", {"question": "x"}))[0] == 200
    items = [{"question": str(n)} for n in range(5)]
    status, answer = await door.post("/invokeBatch", {"requests": items})
    assert (status, answer["error"]) == (429, "Batch would exceed max calls (current: 1, batch: 5, limit: 5)")
    assert await door.count() == 1


async def test_an_empty_batch_costs_nothing_at_the_limit(fleet: MemoryFleet, door: Door) -> None:
    assert await door.post("/invokeBatch", {"requests": []}) == (200, {"responses": []})


@pytest.mark.parametrize("body", [{}, {"requests": "x"}, {"requests": None}, [], b"null"])
async def test_a_batch_without_requests_is_400(door: Door, body: object) -> None:
    status, answer = await door.post("/invokeBatch", body)
    assert (status, answer["error"]) == (400, "Missing required field: requests (array)")


async def test_a_batch_runs_in_parallel(door: Door) -> None:
    began = asyncio.get_running_loop().time()
    items = [{"question": str(n), "target": "slow"} for n in range(5)]
    status, answer = await door.post("/invokeBatch", {"requests": items})
    assert [item["rawText"] for item in answer["responses"]] == ["0", "1", "2", "3", "4"]
    assert status == 200
    assert asyncio.get_running_loop().time() - began < 0.45  # one by one it would be 0.5 s at least


@pytest.mark.parametrize("header", [None, "", "Bearer", "bearer {}", "Basic {}", "Bearer x{}"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/info"), ("POST", "/invoke"), ("GET", "/nowhere")])
async def test_without_its_token_every_path_is_401(
    fleet: MemoryFleet, header: str | None, method: str, path: str
) -> None:
    token = (await fleet.open("judge")).token
    headers = {} if header is None else {"Authorization": header.format(token)}
    async with httpx2.AsyncClient(base_url=fleet.gateway_url) as http:
        response = await http.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
    assert response.status_code == 401
    assert response.json()["error"] == "Unauthorized"


async def test_a_token_that_opens_nothing_hears_nothing_about_its_body(fleet: MemoryFleet) -> None:
    from quintain.contracts.token import SessionToken

    headers = {"Authorization": f"Bearer {SessionToken.mint().text}"}
    async with httpx2.AsyncClient(base_url=fleet.gateway_url, headers=headers) as http:
        for path in ("/invoke", "/invokeBatch"):
            assert (await http.post(path, content=b"{")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/info"), ("GET", "/invoke"), ("HEAD", "/info"), ("GET", "/info/"), ("GET", "/info?x=1"), ("PUT", "/x")],
)
async def test_everything_else_is_404(fleet: MemoryFleet, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {(await fleet.open('judge')).token}"}
    async with httpx2.AsyncClient(base_url=fleet.gateway_url, headers=headers) as http:
        assert (await http.request(method, path)).status_code == 404


async def test_options_needs_no_token_and_every_answer_carries_cors(fleet: MemoryFleet) -> None:
    async with httpx2.AsyncClient(base_url=fleet.gateway_url) as http:
        preflight, refused = await http.options("/anything"), await http.get("/info")
    assert (preflight.status_code, preflight.content) == (204, b"")
    for response in (preflight, refused):
        assert response.headers["access-control-allow-origin"] == "*"
        assert response.headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
        assert response.headers["access-control-allow-headers"] == "Content-Type, Authorization"


async def test_a_body_over_the_limit_is_413(door: Door) -> None:
    status, answer = await door.post("/invoke", {"question": "x" * 1024 * 1024})
    assert (status, answer["code"]) == (413, "payload_too_large")
    assert await door.count() == 0


async def test_sockets_that_stall_between_headers_and_body_overspend_nothing(fleet: MemoryFleet) -> None:
    token = (await fleet.open("judge", 1)).token
    host, port = fleet.gateway_url.removeprefix("http://").split(":")
    body = b'{"question": "x"}'
    head = f"POST /invoke HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
    pairs = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    for _, writer in pairs:
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        await writer.drain()
    await asyncio.sleep(0.2)
    for _, writer in pairs:
        writer.write(body)
        await writer.drain()
    answers = await asyncio.gather(*(reader.read() for reader, _ in pairs))
    for _, writer in pairs:
        writer.close()
        await writer.wait_closed()
    statuses = sorted(answer.split(b" ", 2)[1] for answer in answers)
    assert statuses == [b"200"] + [b"429"] * 19


def test_the_port_that_is_taken_is_said(tmp_path: Path) -> None:
    from starlette.applications import Starlette

    from quintain.errors import ConfigError
    from quintain_gateway.server import serving

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def serve() -> None:
            async with serving(Starlette(), port=port):
                pass

        with pytest.raises(ConfigError, match=f"Port {port} of 127.0.0.1 cannot be opened"):
            asyncio.run(serve())
