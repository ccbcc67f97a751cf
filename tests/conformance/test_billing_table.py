"""The table of docs/configuration.md, row by row over real sockets: what is tried again, and what is charged.

Each failure meets each API, whole and streamed, of a target with a quota and of one without, in a fleet with its
ledger: the caller's fault and the session's counters say the same.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import quintain
from quintain.client.transport import OnChunk
from support.memory_fleet import memory_fleet
from support.model_server import ScriptedResponse, StreamedResponse, model_server
from support.model_wires import ANTHROPIC, RESPONSES, WIRES, Wire

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

Script = ScriptedResponse | StreamedResponse
#: The answer of a failing provider, by the API and whether it streams.
Failure = Callable[[Wire, bool], Script]

QUOTA = {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded your quota"}
CREDIT = {"type": "invalid_request_error", "message": "Your credit balance is too low"}

#: The event by which a stream of each API says that it is complete.
LAST = {"chat": b'"finish_reason": "stop"', "responses": b"response.completed", "anthropic": b"message_delta"}


def status(code: int, error: Mapping[str, object] | None = None, **headers: str) -> Failure:
    body = {"type": "error", "error": error or {"type": "some_error", "message": "It says no"}}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _wire, _stream: ScriptedResponse(status=code, body=body, headers=sent)


def lost(wire: Wire, stream: bool) -> Script:
    """The connection ends in the middle of the answer."""
    if stream:
        return StreamedResponse(events=wire.events(["one ", "two"]), event_count=2, then="close")
    return ScriptedResponse(body=wire.answer("Fine."), close_after=120)


def lost_at_once(_wire: Wire, _stream: bool) -> Script:
    return ScriptedResponse(body=b"", close_after=0)


def incomplete(wire: Wire, stream: bool) -> Script:
    """A stream that ends in order before the answer does; a whole answer has half of its JSON."""
    if stream:
        events = wire.events(["one ", "two"])
        end = next(index for index, each in enumerate(events) if LAST[wire.name] in each)
        return StreamedResponse(events=events, event_count=end)
    return ScriptedResponse(body=json.dumps(wire.answer("Fine.")).encode()[:-20])


def unreadable(_wire: Wire, _stream: bool) -> Script:
    return ScriptedResponse(body=b"<html>It works!</html>", headers={"content-type": "text/html"})


def never(wire: Wire, stream: bool) -> Script:
    """Nothing comes, or nothing after the first events."""
    if stream:
        return StreamedResponse(events=wire.events(["one ", "two"]), event_count=2, then="stall")
    return ScriptedResponse(stall=True)


def error_inside(wire: Wire, stream: bool) -> Script:
    if stream:
        return StreamedResponse(events=[*wire.events(["one "])[:2], wire.error("It broke")])
    return ScriptedResponse(body={"type": "error", "error": {"type": "server_error", "message": "It broke"}})


def spent_credit(wire: Wire, _stream: bool) -> Script:
    code, error = (400, CREDIT) if wire is ANTHROPIC else (429, QUOTA)
    return ScriptedResponse(status=code, body={"type": "error", "error": error})


LOST = "a connection lost during the request, an unreadable answer, an incomplete stream"
DEADLINE = "the deadline passed during the request"

#: By the row of the table: its failures. None: nothing listens there.
ROWS: Mapping[str, Mapping[str, Failure | None]] = {
    "401, 402, 403, 404": {
        **{str(code): status(code) for code in (401, 402, 403, 404)},
        "spent credit": spent_credit,
    },
    "429": {"429": status(429, retry_after_ms="20")},
    "503, 529; no connection": {"503": status(503), "529": status(529), "no connection": None},
    "400 and other refusals of the request": {
        **{str(code): status(code) for code in (400, 413, 422)},
        "redirect": status(307, location="http://127.0.0.1:9/"),
    },
    "other 5xx": {str(code): status(code) for code in (500, 502, 504)},
    LOST: {"lost": lost, "lost at once": lost_at_once, "incomplete": incomplete, "unreadable": unreadable},
    DEADLINE: {"deadline": never},
}


class CallKind(NamedTuple):
    """How a target is called: over which API, whether as a stream, and whether it has a quota, as models have."""

    wire: Wire
    is_streamed: bool
    has_quota: bool

    @property
    def target(self) -> str:
        words = (self.wire.name, "streamed" if self.is_streamed else "whole", "quota" if self.has_quota else "alone")
        return "-".join(words)


KINDS = {
    kind.target: kind for kind in (CallKind(*each) for each in itertools.product(WIRES, (False, True), (False, True)))
}

#: Time for the calls that end at their deadline, and for all others.
SHORT_SECONDS, LONG_SECONDS = 6.0, 60.0


class Outcome(NamedTuple):
    """What a caller is told of a failed call, how often the provider was asked, and what the ledger counts."""

    code: str
    charged: bool | None
    tries: int
    committed: int
    refunded: int
    in_doubt: int


def table_of_the_page() -> dict[str, tuple[str, str, str]]:
    """By the failure: whether it is retried, its fault, and whether it is charged."""
    rows = PAGE.read_text().partition("| failure of the provider |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {failure: (retried, fault.strip("`"), charged) for failure, retried, fault, charged in cells}


TABLE = table_of_the_page()


def outcome_of(row: str) -> Outcome:
    """What the page says of a call to a target with two tries."""
    retried, code, charged = TABLE[row]
    counted = [int(charged == each) for each in ("yes", "no", "yes, in doubt")]
    return Outcome(code, charged != "no", 2 if retried.startswith("yes") else 1, *counted)


def described(kind: CallKind, url: str) -> dict[str, object]:
    """The target as it is configured: with a URL of its own, and so with a quota of its own."""
    base_url = f"{url}/{kind.target}"
    return {
        "provider": "anthropic" if kind.wire is ANTHROPIC else "openai",
        "base_url": base_url if kind.wire is ANTHROPIC else f"{base_url}/v1",
        "model": kind.target,
        "max_tries": 2,
        **({"api": "responses"} if kind.wire is RESPONSES else {}),
        **({} if kind.has_quota else {"adaptive": False}),
    }


async def outcomes(
    folder: Path, fails: Callable[[CallKind], Script] | None, deadline_seconds: float = LONG_SECONDS
) -> dict[str, Outcome]:
    """Let each kind of call fail so, each in a session of its own; None is a provider that nobody reaches."""
    async with model_server() as provider:
        if fails is not None:
            provider.response_for = lambda request: fails(KINDS[str(request.body["model"])])
        url = provider.url if fails is not None else unused_url()
        targets = {name: described(kind, url) for name, kind in KINDS.items()}
        async with memory_fleet(folder, yaml.safe_dump({"targets": targets})) as fleet:

            async def outcome(kind: str) -> Outcome:
                session = await fleet.open_session(kind)
                on_chunk: OnChunk | None = (lambda _: None) if KINDS[kind].is_streamed else None
                async with fleet.client_of(session) as client:
                    with pytest.raises(quintain.Fault) as caught:
                        request = quintain.InvokeRequest(question="x")
                        await client.send(request, deadline_seconds=deadline_seconds, on_chunk=on_chunk)
                    async with asyncio.timeout(20):
                        while (info := await client.get_info()).running + info.reserved:
                            await asyncio.sleep(0.02)
                tries = sum(request.body["model"] == kind for request in provider.requests)
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
async def test_a_failure_is_retried_and_charged_as_the_page_says(
    row: str, failure: Failure | None, tmp_path: Path
) -> None:
    wanted = dict.fromkeys(KINDS, outcome_of(row))
    if failure is None:
        ended = await outcomes(tmp_path, None)
        wanted = {kind: outcome._replace(tries=0) for kind, outcome in wanted.items()}  # none reached it
    else:
        seconds = SHORT_SECONDS if row in {"429", DEADLINE} else LONG_SECONDS
        ended = await outcomes(tmp_path, lambda kind: failure(kind.wire, kind.is_streamed), seconds)
    for name, kind in KINDS.items():
        if row == "429" and kind.has_quota:
            # It waits until its deadline, uncounted, and its reservation ends: there is no charge to give back.
            assert ended[name].tries > 2
            wanted[name] = wanted[name]._replace(tries=ended[name].tries, refunded=0)
    assert ended == wanted


async def test_an_error_inside_an_answer_is_as_a_5xx_and_in_a_stream_as_an_incomplete_one(tmp_path: Path) -> None:
    ended = await outcomes(tmp_path, lambda kind: error_inside(kind.wire, kind.is_streamed))
    assert ended == {name: outcome_of(LOST if kind.is_streamed else "other 5xx") for name, kind in KINDS.items()}


@pytest.mark.parametrize(
    ("first", "then", "row"),
    [(lost, status(503), LOST), (status(500), status(503), "other 5xx"), (status(500), status(429), "other 5xx")],
    ids=["lost and 503", "500 and 503", "500 and 429"],
)
async def test_the_worst_try_decides_what_is_charged(first: Failure, then: Failure, row: str, tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def in_turn(kind: CallKind) -> Script:
        asked[kind.target] += 1
        return (first if asked[kind.target] == 1 else then)(kind.wire, kind.is_streamed)

    for name, outcome in (await outcomes(tmp_path, in_turn, SHORT_SECONDS)).items():
        # With a quota each try is an attempt, and of an earlier one the ledger knows that it may have been billed.
        wanted = outcome_of(LOST if KINDS[name].has_quota else row)
        assert outcome._replace(code="", tries=2) == wanted._replace(code=""), name
        assert outcome.tries >= 2, name
