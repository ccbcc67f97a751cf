"""What a service's log says of a call, from a real worker's stderr; tests/unit/observe/test_logs.py has its forms."""

from __future__ import annotations

import json

from quintain.contracts.credentials import public_id
from support.process_fleet import process_fleet
from support.raw_client import RawAmqpClient

THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"

#: An id that would begin a line of its own.
HOSTILE = 'mine\n{"level": "forged"}'


def test_a_line_about_a_call_has_its_ids_and_neither_its_content_nor_its_token(broker_url: str) -> None:
    with process_fleet(broker_url, "targets: {echo: {provider: mock}}\n", targets=["echo"]) as fleet:
        fleet.extra_env["QUINTAIN_LOG_FORMAT"] = "json"
        _, worker = fleet.start_services("metadata", "worker")
        token = fleet.open_session("echo", 3).token
        # Its caller has gone before its answer.
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
    said = json.loads(line)
    assert {name: said[name] for name in ("level", "requestId", "sessionId", "target", "traceId")} == {
        "level": "info",
        "requestId": HOSTILE,
        "sessionId": public_id(token),
        "target": "echo",
        "traceId": "ab" * 16,
    }
