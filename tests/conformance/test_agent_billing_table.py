"""The table of docs/agents.md on HTTP endpoints, row by row over real sockets: what is tried again, what is charged.

Each failure meets an endpoint that answers whole and one that streams, each with its quota and without, in a fleet with
its ledger: the caller's fault and the session's counters say the same.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import quintain
from quintain.contracts.agents import Continuation, Turn
from quintain.contracts.invoke import ChatMessage
from support.memory_fleet import memory_fleet
from support.model_server import ScriptedResponse, StreamedResponse, model_server

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"

Script = ScriptedResponse | StreamedResponse
#: The answer of a failing endpoint, by whether it streams.
Failure = Callable[[bool], Script]

EVENTS = [b'data: {"delta": "one "}\n\n', b'data: {"delta": "two"}\n\n']


def status(code: int, **headers: str) -> Failure:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: ScriptedResponse(status=code, body={"detail": "It says no"}, headers=sent)


def lost(streams: bool) -> Script:
    if streams:
        return StreamedResponse(events=EVENTS, event_count=2, then="close")
    return ScriptedResponse(body={"out": "Fine. " * 20}, close_after=120)


def lost_at_once(_: bool) -> Script:
    return ScriptedResponse(body=b"", close_after=0)


def without_end(streams: bool) -> Script:
    """A stream that ends in order before its answer does; a whole answer breaks off."""
    return StreamedResponse(events=EVENTS) if streams else lost(streams)


def nothing_found(streams: bool) -> Script:
    if streams:
        return StreamedResponse(events=[b'data: {"end": true}\n\n'])
    return ScriptedResponse(body={"other": "Fine."})


def no_json(_: bool) -> Script:
    return ScriptedResponse(body=b"<html>It works!</html>", headers={"content-type": "text/html"})


def never(streams: bool) -> Script:
    return StreamedResponse(events=EVENTS, then="stall") if streams else ScriptedResponse(stall=True)


REFUSED = "401, 402, 403, 404, 405; 5xx, also 503 without Retry-After"
DEADLINE = "408; no answer in time, or nothing for `idle_seconds`"
FORGOTTEN = "404 or 410 to a session of an earlier answer"

#: By the row of the table: its failures. None: nothing listens there.
ROWS: Mapping[str, Mapping[str, Failure | None]] = {
    "no connection": {"no connection": None},
    "429": {"429": status(429, retry_after_ms="20")},
    "503 with Retry-After": {"503 later": status(503, retry_after_ms="20")},
    FORGOTTEN: {"404 to a session": status(404), "410 to a session": status(410)},
    REFUSED: {str(code): status(code) for code in (401, 402, 403, 404, 405, 500, 502, 503, 504)},
    "other refusals of the request, a redirect": {
        **{str(code): status(code) for code in (400, 413, 422)},
        "redirect": status(307, location="http://127.0.0.1:9/"),
    },
    "an answer that is no JSON, or in which a pointer finds nothing": {"nothing": nothing_found, "no JSON": no_json},
    "a connection lost after a byte was sent, an incomplete stream": {
        "lost": lost,
        "lost at once": lost_at_once,
        "without end": without_end,
    },
    DEADLINE: {"deadline": never, "408": status(408)},
}


class Outcome(NamedTuple):
    """What a caller is told of a failed call, how often the endpoint was asked, and what the ledger counts."""

    code: str
    charged: bool | None
    tries: int
    committed: int
    refunded: int
    in_doubt: int


def table_of_the_page() -> dict[str, tuple[str, str, str]]:
    """By the failure: whether it is tried again, its fault, and whether it is charged."""
    rows = PAGE.read_text().partition("| what happens | tried again |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {failure: (again, fault.strip("`"), charged) for failure, again, fault, charged in cells}


TABLE = table_of_the_page()


def outcome_of(row: str) -> Outcome:
    """What the page says of a call to a target with two tries."""
    again, code, charged = TABLE[row]
    counted = [int(charged == each) for each in ("yes", "no", "yes, in doubt")]
    return Outcome(code, charged != "no", 2 if again.startswith("yes") else 1, *counted)


#: By the target: whether it streams, and whether it has a quota, as endpoints have.
KINDS = {
    f"{'streamed' if streams else 'whole'}-{'quota' if has_quota else 'alone'}": (streams, has_quota)
    for streams, has_quota in itertools.product((False, True), (False, True))
}


def described(kind: str, url: str) -> dict[str, object]:
    streams, has_quota = KINDS[kind]
    return {
        "provider": "http",
        "url": f"{url}/{kind}",
        "body": {"kind": kind, "q": "{{ prompt }}", "s": "{{ session }}"},
        "session": "/s",
        "max_tries": 2,
        **({"stream": {"text": "/delta", "end": "/end"}} if streams else {"answer": "/out"}),
        **({} if has_quota else {"adaptive": False}),
    }


SECOND_TURN = quintain.InvokeRequest(
    messages=[ChatMessage(role=role, content=role) for role in ("user", "assistant", "user")],
    turn=Turn(conversation_id="c", number=2, continuation=Continuation(state='"s1"')),
)


async def outcomes(
    folder: Path, fails: Failure | None, request: quintain.InvokeRequest, deadline_seconds: float
) -> dict[str, Outcome]:
    """Let each kind of endpoint fail so, each in a session of its own; None is one that nobody reaches."""
    async with model_server() as endpoint:
        if fails is not None:
            endpoint.response_for = lambda received: fails(KINDS[str(received.body["kind"])][0])
        url = endpoint.url if fails is not None else unused_url()
        targets = {kind: described(kind, url) for kind in KINDS}
        async with memory_fleet(folder, yaml.safe_dump({"targets": targets})) as fleet:

            async def outcome(kind: str) -> Outcome:
                session = await fleet.open_session(kind)
                async with fleet.client_of(session) as client:
                    with pytest.raises(quintain.Fault) as caught:
                        await client.send(request, deadline_seconds=deadline_seconds)
                    async with asyncio.timeout(20):
                        while (info := await client.get_info()).running + info.reserved:
                            await asyncio.sleep(0.02)
                tries = sum(json.loads(received.raw)["kind"] == kind for received in endpoint.requests)
                fault = caught.value
                return Outcome(fault.code, fault.charged, tries, info.committed, info.refunded, info.in_doubt)

            return dict(zip(KINDS, await asyncio.gather(*map(outcome, KINDS)), strict=True))


def unused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def test_every_row_of_the_page_has_its_failures() -> None:
    assert list(TABLE) == list(ROWS)


@pytest.mark.parametrize(
    ("row", "failure"),
    [pytest.param(row, failure, id=name) for row, failures in ROWS.items() for name, failure in failures.items()],
)
async def test_a_failure_is_tried_again_and_charged_as_the_page_says(
    row: str, failure: Failure | None, tmp_path: Path
) -> None:
    request = SECOND_TURN if row == FORGOTTEN else quintain.InvokeRequest(question="x")
    ended = await outcomes(tmp_path, failure, request, 4 if row in {"429", DEADLINE} else 60)
    for kind, (_, has_quota) in KINDS.items():
        wanted = outcome_of(row)
        if failure is None:
            wanted = wanted._replace(tries=0)  # none reached it
        if row == "429" and has_quota:
            # It waits until its deadline, uncounted, and its reservation ends: there is no charge to give back.
            assert ended[kind].tries > 2
            wanted = wanted._replace(tries=ended[kind].tries, refunded=0)
        assert ended[kind] == wanted, kind
