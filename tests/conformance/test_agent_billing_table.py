"""The table of docs/agents.md on HTTP endpoints, row by row over real sockets: what is tried again, what is charged.

Each failure meets an endpoint that answers whole and one that streams, each with its quota and without, in a fleet with
its ledger: the caller's fault and the session's counters say the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest

import quintain
from quintain.contracts.agents import Continuation, Turn
from quintain.contracts.invoke import ChatMessage
from support.billing_table import (
    QUESTION,
    THROTTLED,
    BillingTable,
    Failing,
    FailingTargets,
    Outcome,
    Script,
    refusal,
)
from support.model_server import ScriptedResponse, StreamedResponse

TABLE = BillingTable.of_page("agents.md", "| what happens | tried again |")

#: The answer of a failing endpoint, by whether it streams.
Failure = Callable[[bool], Script]

EVENTS = [b'data: {"delta": "one "}\n\n', b'data: {"delta": "two"}\n\n']


def status(code: int, **headers: str) -> Failure:
    return lambda _: refusal(code, {"detail": "It says no"}, **headers)


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


def error_inside(streams: bool) -> Script:
    if streams:
        return StreamedResponse(events=[EVENTS[0], b'data: {"error": {"message": "It broke"}}\n\n', *EVENTS[1:]])
    return ScriptedResponse(body={"out": "Fine.", "error": {"message": "It broke"}})


def no_json(_: bool) -> Script:
    return ScriptedResponse(body=b"<html>It works!</html>", headers={"content-type": "text/html"})


def never(streams: bool) -> Script:
    return StreamedResponse(events=EVENTS, then="stall") if streams else ScriptedResponse(stall=True)


DEADLINE = "408; no answer in time, or nothing for `idle_seconds`"
FORGOTTEN = "404 or 410 to a session of an earlier answer"

#: By the row of the table: its failures. None: nothing listens there.
ROWS: Mapping[str, Mapping[str, Failure | None]] = {
    "no connection": {"no connection": None},
    "429": {"429": status(429, retry_after_ms="20")},
    "503 with Retry-After": {"503 later": status(503, retry_after_ms="20")},
    FORGOTTEN: {"404 to a session": status(404), "410 to a session": status(410)},
    "401, 402, 407: a refused credential": {str(code): status(code) for code in (401, 402, 407)},
    "404, 405; 5xx, also 503 without Retry-After": {str(code): status(code) for code in (404, 405, 500, 502, 503, 504)},
    "other refusals of the request, a redirect; 403, which may be a guard's answer": {
        **{str(code): status(code) for code in (400, 403, 413, 422)},
        "redirect": status(307, location="http://127.0.0.1:9/"),
    },
    "an answer that is no JSON, or in which a pointer finds nothing": {"nothing": nothing_found, "no JSON": no_json},
    "a connection lost after a byte was sent, an incomplete stream, an answer that says that it failed": {
        "error inside": error_inside,
        "lost": lost,
        "lost at once": lost_at_once,
        "without end": without_end,
    },
    DEADLINE: {"deadline": never, "408": status(408)},
}


#: By the target: whether it streams, and whether it has a quota, as endpoints have.
KINDS = {
    f"{'streamed' if streams else 'whole'}-{'quota' if has_quota else 'alone'}": (streams, has_quota)
    for streams, has_quota in itertools.product((False, True), (False, True))
}


def described(kind: str, name: str, url: str) -> dict[str, object]:
    streams, has_quota = KINDS[kind]
    return {
        "provider": "http",
        "url": f"{url}/{name}",
        "body": {"kind": name, "q": "{{ prompt }}", "s": "{{ session }}"},
        "session": "/s",
        "max_tries": 2,
        **({"stream": {"text": "/delta", "end": "/end"}} if streams else {"answer": "/out"}),
        **({} if has_quota else {"adaptive": False}),
    }


SECOND_TURN = quintain.InvokeRequest(
    messages=[ChatMessage(role=role, content=role) for role in ("user", "assistant", "user")],
    turn=Turn(conversation_id="c", number=2, continuation=Continuation(state='"s1"')),
)


TARGETS = FailingTargets(kinds=KINDS, described=described, field="kind")


def failing(row: str, failure: Failure | None) -> Failing:
    return Failing(
        answer=None if failure is None else lambda kind: failure(KINDS[kind][0]),
        request=SECOND_TURN if row == FORGOTTEN else QUESTION,
        # A quota asks a third time within five seconds.
        deadline_seconds=10 if row in {THROTTLED, DEADLINE} else 60,
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Outcome]]:
    """What came of each failure."""
    failures = {name: failing(row, failure) for row, each in ROWS.items() for name, failure in each.items()}
    return TARGETS.outcomes(tmp_path_factory.mktemp("fleet"), failures)


def test_every_row_of_the_page_has_its_failures() -> None:
    assert list(TABLE.rows) == list(ROWS)


@pytest.mark.parametrize(("row", "name"), [(row, name) for row, failures in ROWS.items() for name in failures])
def test_a_failure_is_tried_again_and_charged_as_the_page_says(
    row: str, name: str, ended: Mapping[str, Mapping[str, Outcome]]
) -> None:
    for kind, (_, has_quota) in KINDS.items():
        is_reached = ROWS[row][name] is not None
        TABLE.check(row, ended[name][kind], is_reached=is_reached, has_quota=has_quota, name=kind)
