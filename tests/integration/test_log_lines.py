"""What a service's log says of a call, from a real worker's stderr; tests/unit/observe/test_logs.py has its forms."""

from __future__ import annotations

import json
import re
import urllib.request

from quintain.contracts.credentials import public_id
from support.process_fleet import process_fleet
from support.raw_client import RawAmqpClient

THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"

#: An id that would begin a line of its own.
HOSTILE = 'mine\n{"level": "forged"}'

CHAT = {"model": "bot", "messages": [{"role": "user", "content": "q"}]}


def test_debug_lines_follow_a_call_through_gateway_metadata_and_host(broker_url: str) -> None:
    config = "targets: {bot: {provider: target, host: doll}}\n"
    with process_fleet(broker_url, config, targets=["bot"]) as fleet:
        (fleet.folder / "dolls.py").write_text("def polite(prompt): return 'yes'")
        fleet.extra_env |= {"QUINTAIN_LOG_FORMAT": "json", "QUINTAIN_LOG_LEVEL": "debug"}
        metadata, _ = fleet.start_services("metadata", "worker")
        gateway = fleet.start("serve", "gateway", "--port", "0")
        host = fleet.start("serve", "host", "dolls:polite", "--name", "doll")
        for service in (gateway, host):
            service.wait_for_output("ready  ")
        (url,) = re.findall(r"ready  gateway.*(http://[\w.:]+)", gateway.read_output())
        token = fleet.open_session("bot", 3).token
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        for path, body in (("/invoke", {"question": "q"}), ("/v1/chat/completions", CHAT)):
            asked = urllib.request.Request(url + path, json.dumps(body).encode(), {**headers, "idempotency-key": path})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert answer.status == 200
        gateway.wait_for_output("route=/v1/chat/completions")
        outputs = []
        for service in (gateway, metadata, host):
            assert service.stop() == 0
            outputs.append([json.loads(line) for line in service.read_output().splitlines()])
    for path in ("/invoke", "/v1/chat/completions"):
        of_call = [[line for line in lines if line.get("requestId") == path] for lines in outputs]
        assert all(len(lines) >= 2 for lines in of_call)
        assert [line["level"] for line in of_call[0] if line["logger"] == "quintain_gateway.access_log"] == ["info"]


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
