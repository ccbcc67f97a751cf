"""The gateway and AgentV's own proxy at the same requests: equal, but for the differences that the docs list.

AgentV's answers are recorded; tests/clients/test_agentv_proxy.py holds them against the proxy that npm has. To write
the table of ``docs/gateway.md`` again, run this file with ``QUINTAIN_RECORD_SNAPSHOTS=1``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from quintain.settings import MEMORY_URL
from support.agentv_requests import CONFIG, DEFAULT_TARGET, RECORDED, REQUESTS, TARGETS, AgentVRequest, answer_of
from support.memory_fleet import MemoryFleet, memory_fleet
from support.pages import assert_documented
from support.process_fleet import delete_protocol_queues

MALFORMED = "the caller's mistake, and not the server's"
TYPES = "AgentV checks no type, and its provider gets the value"
METHOD = "405 says which method the path has"
KEY = "the same call: charged once, with the same answer"

#: Why the gateway does not do as AgentV does.
REASONS: Mapping[str, str] = {
    "HEAD /info": METHOD,
    "PUT /invoke": METHOD,
    "info with the scheme in lower case": "a scheme has no case (RFC 9110)",
    "2 MiB": "a body has a limit",
    "target: an object": "the text names the type that is missing",
    "target: null": "`null` is absent: AgentV's Python client sends it for every key that is not set",
    "provider in place of target": "the name that AgentV's later versions have for it",
    "null": MALFORMED,
    "an empty body": MALFORMED,
    "malformed JSON": MALFORMED,
    "a body that is not UTF-8": "AgentV replaces the bytes, and the provider gets another question",
    "NaN": MALFORMED,
    "a key twice": "nobody knows which of the two was meant",
    "systemPrompt: a number": TYPES,
    "evalCaseId: a number": TYPES,
    "attempt: a string": TYPES,
    "attempt: -1": TYPES,
    "the same key again": KEY,
    "the same key again at a spent budget": KEY,
    "a batch that is null": MALFORMED,
    "a batch of malformed JSON": MALFORMED,
    "a batch with an empty body": MALFORMED,
    "malformed JSON at a spent budget": MALFORMED,
    "an item with target: null": "`null` is absent",
    "an item that is null": "its item is an error, and the answers of the others are kept",
}


async def answer_here(fleet: MemoryFleet, http: httpx2.AsyncClient, request: AgentVRequest) -> dict[str, Any]:
    """What the gateway answers, in a session of the request's own."""
    allowed = {} if request.targets == TARGETS else {"allowed_targets": list(request.targets)}
    token = (await fleet.open_session(DEFAULT_TARGET, request.max_calls, **allowed)).token
    return await answer_of(http, fleet.gateway_url, token, request)


def cell(answer: Mapping[str, Any]) -> str:
    calls = answer["calls"]
    return f"{answer['status']}" + (f", {calls} call{'s' * (calls > 1)}" if calls else "")


async def test_the_gateway_answers_as_agentv_but_for_the_listed_differences(bus_url: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())
    if bus_url != MEMORY_URL:
        await asyncio.to_thread(delete_protocol_queues, bus_url, TARGETS)
    async with (
        memory_fleet(tmp_path, CONFIG, broker_url=bus_url) as fleet,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        answers = await asyncio.gather(*(answer_here(fleet, http, request) for request in REQUESTS))
    here = {request.name: answer for request, answer in zip(REQUESTS, answers, strict=True)}
    assert recorded.keys() == here.keys()
    differences = {name for name, answer in here.items() if answer != recorded[name]}
    assert {name: (recorded[name], here[name]) for name in differences - REASONS.keys()} == {}
    assert differences == REASONS.keys()
    rows = [[name, cell(recorded[name]), cell(here[name]), reason] for name, reason in REASONS.items()]
    assert_documented("agentv", [["request", "AgentV 4.42.4", "Quintain", "because"], *rows])


async def test_the_keys_that_are_ignored_are_named(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet, httpx2.AsyncClient(timeout=60) as http:
        headers = {"Authorization": f"Bearer {(await fleet.open_session(DEFAULT_TARGET)).token}"}
        body = {"question": "q", "temperature": 2, "model": "x", "nothing": None}
        for path, sent in (("/invoke", body), ("/invokeBatch", {"requests": [{"question": "q"}, body]})):
            response = await http.post(fleet.gateway_url + path, json=sent, headers=headers)
            assert (response.status_code, response.headers["x-quintain-ignored"]) == (200, "model, temperature")
