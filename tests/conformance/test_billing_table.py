"""The table of docs/configuration.md, row by row over real sockets: what is tried again, and what is charged.

Each failure meets each API, whole and streamed, of a target with a quota and of one without, in a fleet with its
ledger: the caller's fault and the session's counters say the same.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from support.billing_table import THROTTLED, BillingTable, Failing, FailingTargets, Outcome, Script, refusal
from support.model_server import ScriptedResponse, StreamedResponse
from support.model_wires import ANTHROPIC, RESPONSES, WIRES, Wire

TABLE = BillingTable.of_page("configuration.md", "| failure of the provider |")

Ended = Mapping[str, Mapping[str, Outcome]]

#: The answer of a failing provider, by the API and whether it streams.
Failure = Callable[[Wire, bool], Script]

QUOTA = {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded your quota"}
CREDIT = {"type": "invalid_request_error", "message": "Your credit balance is too low"}


def status(code: int, error: Mapping[str, object] | None = None, **headers: str) -> Failure:
    body = {"type": "error", "error": error or {"type": "some_error", "message": "It says no"}}
    return lambda _wire, _stream: refusal(code, body, **headers)


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
        return StreamedResponse(events=events, event_count=wire.before_end(events))
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
    "401, 402, 403, 404, 407": {
        **{str(code): status(code) for code in (401, 402, 403, 404, 407)},
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


def described(kind: str, name: str, url: str) -> dict[str, object]:
    """The target as it is configured: with a URL of its own, and so with a quota of its own."""
    wire, _, has_quota = KINDS[kind]
    base_url = f"{url}/{name}"
    return {
        "provider": "anthropic" if wire is ANTHROPIC else "openai",
        "base_url": base_url if wire is ANTHROPIC else f"{base_url}/v1",
        "model": name,
        "max_tries": 2,
        **({"api": "responses"} if wire is RESPONSES else {}),
        **({} if has_quota else {"adaptive": False}),
    }


TARGETS = FailingTargets(
    kinds=KINDS,
    described=described,
    field="model",
    streamed=frozenset(name for name, kind in KINDS.items() if kind.is_streamed),
)

#: Failures that follow each other.
IN_TURN: Mapping[str, tuple[Failure, Failure]] = {
    "lost and 503": (lost, status(503)),
    "500 and 503": (status(500), status(503)),
    "500 and 429": (status(500), status(429)),
}

#: Time for the calls that end at their deadline.
SHORT_SECONDS = 10.0


def failing(failure: Failure | None, **more: Any) -> Failing:
    if failure is None:
        return Failing(answer=None)
    return Failing(answer=lambda kind: failure(KINDS[kind].wire, KINDS[kind].is_streamed), **more)


def in_turn(first: Failure, then: Failure) -> Failing:
    """The first request of each target fails so, and all others in another way."""
    asked: Counter[str] = Counter()

    def answer(kind: str) -> Script:
        asked[kind] += 1
        return (first if asked[kind] == 1 else then)(KINDS[kind].wire, KINDS[kind].is_streamed)

    return Failing(answer=answer, deadline_seconds=SHORT_SECONDS)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """What came of each failure."""
    short = {THROTTLED: {"deadline_seconds": SHORT_SECONDS}, DEADLINE: {"deadline_seconds": SHORT_SECONDS}}
    failures = {
        name: failing(failure, **short.get(row, {})) for row, each in ROWS.items() for name, failure in each.items()
    }
    failures |= {name: in_turn(first, then) for name, (first, then) in IN_TURN.items()}
    return TARGETS.outcomes(tmp_path_factory.mktemp("fleet"), {**failures, "inside": failing(error_inside)})


def test_every_row_of_the_page_has_its_failures() -> None:
    assert list(TABLE.rows) == list(ROWS)


@pytest.mark.parametrize(("row", "name"), [(row, name) for row, failures in ROWS.items() for name in failures])
def test_a_failure_is_retried_and_charged_as_the_page_says(row: str, name: str, ended: Ended) -> None:
    for target, kind in KINDS.items():
        is_reached = ROWS[row][name] is not None
        TABLE.check(row, ended[name][target], is_reached=is_reached, has_quota=kind.has_quota, name=target)


def test_an_error_inside_an_answer_is_as_an_incomplete_stream(ended: Ended) -> None:
    assert ended["inside"] == dict.fromkeys(KINDS, TABLE.outcome_of(LOST))


@pytest.mark.parametrize("name", IN_TURN)
def test_a_call_of_which_an_earlier_try_may_have_been_billed_is_in_doubt(name: str, ended: Ended) -> None:
    for target, outcome in ended[name].items():
        wanted = TABLE.outcome_of(LOST)
        assert outcome._replace(code="", tries=2) == wanted._replace(code=""), target
        assert outcome.tries >= 2, target
