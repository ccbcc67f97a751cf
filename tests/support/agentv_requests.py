"""Requests to AgentV's proxy API, for AgentV's own proxy and for the gateway: the same table, compared key by key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

#: What AgentV's proxy answered, by the request's name; tests/clients holds it against the proxy itself.
RECORDED = Path(__file__).with_name("agentv_4.42.4.json")

#: The order in which both have them: neither that of their names, nor with the default first.
TARGETS = ("echo", "judge", "alt", "mute", "silent", "broken")
DEFAULT_TARGET = "judge"

#: The same targets for the gateway; programs/agentv_proxies.mjs has them for AgentV's proxy.
CONFIG = """
targets:
  echo: {provider: mock, token_usage: {input: 3, output: 1}}
  judge: {provider: mock, response: "Response from judge", token_usage: {input: 10, output: 5}}
  alt: {provider: mock, response: "Response from alt", token_usage: {input: 10, output: 5}}
  mute: {provider: command, command: [printf, "no usage"]}
  silent: {provider: mock, response: "", token_usage: {input: 10, output: 0}}
  broken: {provider: mock, fail_rate: 1, max_tries: 1}
"""

#: AgentV's keys in an answer about the session, in one of a target, and in an error; all others are additions.
INFO_KEYS = ("targetName", "maxCalls", "callCount", "availableTargets")
RESULT_KEYS = ("output", "rawText", "tokenUsage")
ERROR_KEYS = ("error",)

CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "Content-Type, Authorization",
}


@dataclass(frozen=True, kw_only=True)
class AgentVRequest:
    """One request, in a session of its own, after ``earlier`` requests; ``body`` is sent as JSON unless it is bytes.

    ``authorization`` is the header with ``{}`` for the token; None sends none.
    """

    name: str
    method: str = "POST"
    path: str = "/invoke"
    body: Any = None
    max_calls: int = 5
    targets: tuple[str, ...] = TARGETS
    earlier: tuple[AgentVRequest, ...] = ()
    authorization: str | None = "Bearer {}"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes | None:
        """The body as it is sent."""
        return self.body if self.body is None or isinstance(self.body, bytes) else json.dumps(self.body).encode()


def invoke(name: str, body: Any, **more: Any) -> AgentVRequest:
    return AgentVRequest(name=name, body=body, **more)


def batch(name: str, requests: Any, **more: Any) -> AgentVRequest:
    return AgentVRequest(name=name, path="/invokeBatch", body={"requests": requests}, **more)


def batch_body(name: str, body: Any, **more: Any) -> AgentVRequest:
    return AgentVRequest(name=name, path="/invokeBatch", body=body, **more)


def get(name: str, path: str, method: str = "GET", **more: Any) -> AgentVRequest:
    return AgentVRequest(name=name, method=method, path=path, **more)


ASK = {"question": "Which way?"}
ONE = invoke("one call", ASK)
FAILING = invoke("a failing call", {**ASK, "target": "broken"})
UNKNOWN = invoke("a refused call", {**ASK, "target": "nope"})
KEYED = invoke("a call with a key", ASK, headers={"Idempotency-Key": "mine"})

REQUESTS: tuple[AgentVRequest, ...] = (
    # GET /info, and what is around it
    get("info", "/info"),
    get("info after a call", "/info", earlier=(ONE,)),
    get("info after a failed call", "/info", earlier=(FAILING,)),
    get("info after a refused call", "/info", earlier=(UNKNOWN,)),
    get("info of a session of two targets", "/info", targets=("judge", "alt")),
    get("info with a query", "/info?x=1"),
    get("info with a slash at its end", "/info/"),
    get("HEAD /info", "/info", "HEAD"),
    get("POST /info", "/info", "POST", body={}),
    get("GET /invoke", "/invoke"),
    get("PUT /invoke", "/invoke", "PUT", body=ASK),
    get("an unknown path", "/nowhere"),
    get("OPTIONS without a token", "/invoke", "OPTIONS", authorization=None),
    get("OPTIONS of an unknown path", "/nowhere", "OPTIONS", authorization=None),
    # the token
    get("info without a token", "/info", authorization=None),
    get("info with another token", "/info", authorization="Bearer x{}"),
    get("info with the scheme in lower case", "/info", authorization="bearer {}"),
    get("an unknown path without a token", "/nowhere", authorization=None),
    invoke("malformed JSON without a token", b"{", authorization=None),
    batch("a batch without a token", [ASK], authorization=None),
    # POST /invoke: valid
    invoke("a question", ASK),
    invoke("the default by its name", {**ASK, "target": "judge"}),
    invoke("another target", {**ASK, "target": "alt"}),
    invoke("all documented keys", {**ASK, "systemPrompt": "s", "evalCaseId": "c", "attempt": 2, "target": "echo"}),
    invoke("attempt 0", {**ASK, "attempt": 0}),
    invoke("a question of a space", {"question": " ", "target": "echo"}),
    invoke("a question beyond ASCII", {"question": "Où? 東 🧭", "target": "echo"}),
    invoke("unknown keys", {**ASK, "model": "x", "temperature": 2, "nested": {"a": [1]}}),
    invoke("a key twice", b'{"question": "a", "question": "b", "target": "echo"}'),
    invoke("as text/plain", ASK, headers={"Content-Type": "text/plain"}),
    invoke("null where a value is optional", {**ASK, "systemPrompt": None, "evalCaseId": None, "attempt": None}),
    invoke("an empty answer", {**ASK, "target": "silent"}),
    invoke("a provider that counts no tokens", {**ASK, "target": "mute"}),
    invoke("100 kB", {"question": "x" * 100_000}),
    invoke("2 MiB", {"question": "x" * 2 * 1024 * 1024}),
    # POST /invoke: the target
    invoke("an unknown target", {**ASK, "target": "nope"}),
    invoke("an unknown target in a session of two", {**ASK, "target": "nope"}, targets=("judge", "alt")),
    invoke("target: empty", {**ASK, "target": ""}),
    invoke("target: true", {**ASK, "target": True}),
    invoke("target: a number", {**ASK, "target": 7}),
    invoke("target: an object", {**ASK, "target": {}}),
    invoke("target: null", {**ASK, "target": None}),
    invoke("provider in place of target", {**ASK, "provider": "alt"}),
    invoke("a provider's failure", {**ASK, "target": "broken"}),
    # POST /invoke: bad bodies
    invoke("no question", {}),
    invoke("an empty question", {"question": ""}),
    invoke("a question that is a number", {"question": 7}),
    invoke("a question that is null", {"question": None}),
    invoke("an array", []),
    invoke("a string", "Which way?"),
    invoke("null", b"null"),
    invoke("an empty body", b""),
    invoke("malformed JSON", b"{"),
    invoke("a body that is not UTF-8", b'{"question": "\xff"}'),
    invoke("NaN", b'{"question": "a", "attempt": NaN}'),
    invoke("systemPrompt: a number", {**ASK, "systemPrompt": 7}),
    invoke("evalCaseId: a number", {**ASK, "evalCaseId": 7}),
    invoke("attempt: a string", {**ASK, "attempt": "two"}),
    invoke("attempt: -1", {**ASK, "attempt": -1}),
    # a spent budget
    invoke("a spent budget", ASK, max_calls=1, earlier=(ONE,)),
    invoke("a spent budget and an unknown target", {**ASK, "target": "nope"}, max_calls=1, earlier=(ONE,)),
    invoke("a spent budget and no question", {}, max_calls=1, earlier=(ONE,)),
    invoke("a spent budget and malformed JSON", b"{", max_calls=1, earlier=(ONE,)),
    invoke("a limit of 0", ASK, max_calls=0),
    get("info of a limit of 0", "/info", max_calls=0),
    invoke("a budget spent by a failure", ASK, max_calls=1, earlier=(FAILING,)),
    # the same request again
    invoke("the same request again", ASK, earlier=(ONE,)),
    invoke("the same key again", ASK, headers=KEYED.headers, earlier=(KEYED,)),
    invoke("the same key again at a spent budget", ASK, headers=KEYED.headers, max_calls=1, earlier=(KEYED,)),
    # POST /invokeBatch
    batch("a batch", [{"question": "a", "target": "echo"}, {"question": "b", "target": "echo"}]),
    batch("a batch to several targets", [ASK, {**ASK, "target": "alt"}, {**ASK, "target": "mute"}]),
    batch("an empty batch", []),
    batch("an empty batch at a spent budget", [], max_calls=1, earlier=(ONE,)),
    batch("a batch with unknown keys", [{**ASK, "model": "x"}, {**ASK, "n": 2}]),
    batch_body("a batch without requests", {}),
    batch_body("requests: a string", {"requests": "x"}),
    batch_body("requests: null", {"requests": None}),
    batch_body("a batch that is an array", [ASK]),
    batch_body("a batch that is null", b"null"),
    batch_body("a batch of malformed JSON", b"{"),
    batch_body("a batch with an empty body", b""),
    batch("a batch of all that is left", [ASK, ASK], max_calls=2),
    batch("a batch of more than is left", [ASK, ASK], max_calls=2, earlier=(ONE,)),
    batch("a batch of more than is left, with bad items", [ASK, {}, {**ASK, "target": "nope"}], max_calls=2),
    batch_body("malformed JSON at a spent budget", b"{", max_calls=1, earlier=(ONE,)),
    batch("an item without a question", [{}, ASK]),
    batch("an item with an unknown target", [{**ASK, "target": "nope"}, ASK]),
    batch("an item with target: true", [{**ASK, "target": True}, ASK]),
    batch("an item with target: null", [{**ASK, "target": None}, ASK]),
    batch("an item whose provider fails", [{**ASK, "target": "broken"}, ASK]),
    batch("an item that is null", [ASK, None]),
    batch("an item that is a string", ["Which way?", ASK]),
    batch("an item that is a number", [7, ASK]),
)


async def answer_of(http: httpx2.AsyncClient, url: str, token: str, request: AgentVRequest) -> dict[str, Any]:
    """Send a request after its earlier ones; return the response in AgentV's words, and the calls it has cost."""
    for earlier in request.earlier:
        await _send(http, url, token, earlier)
    before = await _call_count(http, url, token)
    response = await _send(http, url, token, request)
    told = response.json() if response.content else None
    after = await _call_count(http, url, token)
    answer: dict[str, Any] = {"status": response.status_code, "calls": after - before}
    if {name: response.headers.get(name) for name in CORS} != CORS:
        answer["headers"] = {name: response.headers.get(name) for name in CORS}
    if isinstance(told, dict) and "responses" in told:
        answer["responses"] = [_in_agentvs_words(one) for one in told["responses"]]
    elif told is not None:
        answer["body"] = _in_agentvs_words(told)
    return answer


def _in_agentvs_words(told: Mapping[str, Any]) -> dict[str, Any]:
    keys = INFO_KEYS if "targetName" in told else RESULT_KEYS if "output" in told else ERROR_KEYS
    return {key: told[key] for key in keys if key in told}


async def _send(http: httpx2.AsyncClient, url: str, token: str, request: AgentVRequest) -> httpx2.Response:
    headers = {"Content-Type": "application/json", **request.headers}
    if request.authorization is not None:
        headers["Authorization"] = request.authorization.format(token)
    return await http.request(request.method, f"{url}{request.path}", content=request.content, headers=headers)


async def _call_count(http: httpx2.AsyncClient, url: str, token: str) -> int:
    info = await http.get(f"{url}/info", headers={"Authorization": f"Bearer {token}"})
    return int(info.json()["callCount"])
