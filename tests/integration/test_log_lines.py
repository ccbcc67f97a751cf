"""What a service's log says of a call: a real worker's stderr, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from quintain.contracts.credentials import public_id
from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.raw_client import RawAmqpClient

THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"

#: An id that would begin a line of its own.
HOSTILE = 'mine\n{"level": "forged"}'


@pytest.fixture(scope="module")
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, "targets: {echo: {provider: mock}}\n", targets=["echo"]) as fleet:
        fleet.start_service("metadata")
        yield fleet


def logged_call(fleet: ProcessFleet, log_format: str) -> tuple[str, str]:
    """The worker's line about a call whose caller has gone before its answer, and the session's token."""
    fleet.extra_env["QUINTAIN_LOG_FORMAT"] = log_format
    worker = fleet.start_service("worker")
    admin = RawAmqpClient(fleet.broker_url, ADMIN_TOKEN)
    token = str(
        admin.call({"defaultTarget": "echo"}, key="open", exchange="quintain.metadata", kind="open")[1]["token"]
    )
    admin.close()
    gone = RawAmqpClient(fleet.broker_url, token)
    gone.reply_key = "nobody"
    headers: dict[str, object] = {"x-quintain-request-id": HOSTILE, "traceparent": THEIRS}
    gone.publish({"question": "a secret"}, key="echo", headers=headers)
    worker.wait_for_output("reply queue is gone or full")
    assert worker.stop() == 0
    gone.close()
    text = worker.read_output()
    assert "a secret" not in text
    assert token not in text
    [line] = [line for line in text.splitlines() if "reply queue is gone or full" in line]
    return line, token


def test_as_json_it_has_the_ids_of_the_call(fleet: ProcessFleet) -> None:
    line, token = logged_call(fleet, "json")
    said = json.loads(line)
    assert {name: said[name] for name in ("level", "requestId", "sessionId", "target", "traceId")} == {
        "level": "info",
        "requestId": HOSTILE,
        "sessionId": public_id(token),
        "target": "echo",
        "traceId": "ab" * 16,
    }


def test_as_text_it_has_them_too_and_no_id_begins_a_line(fleet: ProcessFleet) -> None:
    line, token = logged_call(fleet, "text")
    told = line[line.index("[call=") :]
    assert told == rf'[call=mine\n{{"level": "forged"}} session={public_id(token)} target=echo trace={"ab" * 16}]'
