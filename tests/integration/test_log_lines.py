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

SECRET = "a secret"
CHAT = {"model": "bot", "messages": [{"role": "user", "content": SECRET}]}


def test_a_line_about_a_call_has_its_ids_and_neither_its_content_nor_its_token(broker_url: str) -> None:
    config = "targets: {bot: {provider: target, host: doll}, echo: {provider: mock}}\n"
    with process_fleet(broker_url, config, targets=["bot", "echo"]) as fleet:
        (fleet.folder / "dolls.py").write_text("def polite(prompt): return 'yes'")
        fleet.extra_env |= {"QUINTAIN_LOG_FORMAT": "json", "QUINTAIN_LOG_LEVEL": "debug"}
        metadata, worker = fleet.start_services("metadata", "worker")
        gateway = fleet.start("serve", "gateway", "--port", "0")
        host = fleet.start("serve", "host", "dolls:polite", "--name", "doll")
        for service in (gateway, host):
            service.wait_for_output("ready  ")
        (url,) = re.findall(r"ready  gateway.*(http://[\w.:]+)", gateway.read_output())
        token = fleet.open_session("bot", 4).token
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        for path, body in (("/invoke", {"question": SECRET}), ("/v1/chat/completions", CHAT)):
            asked = urllib.request.Request(url + path, json.dumps(body).encode(), {**headers, "idempotency-key": path})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert answer.status == 200
        gateway.wait_for_output("route=/v1/chat/completions")
        # Its caller has gone before its answer.
        gone = RawAmqpClient(fleet.broker_url, token)
        gone.reply_key = "nobody"
        ids: dict[str, object] = {"x-quintain-request-id": HOSTILE, "traceparent": THEIRS}
        gone.publish({"question": SECRET}, key="echo", headers=ids)
        worker.wait_for_output("reply queue is gone or full")
        gone.close()
        outputs = []
        for service in (gateway, metadata, host, worker):
            assert service.stop() == 0
            text = service.read_output()
            assert SECRET not in text
            assert token not in text
            outputs.append([json.loads(line) for line in text.splitlines()])
    for path in ("/invoke", "/v1/chat/completions"):
        of_call = [[line for line in lines if line.get("requestId") == path] for lines in outputs]
        assert all(len(lines) >= 2 for lines in of_call[:3])
        assert [line["level"] for line in of_call[0] if line["logger"] == "quintain_gateway.access_log"] == ["info"]
    [said] = [line for line in outputs[-1] if "reply queue is gone or full" in str(line)]
    assert {name: said[name] for name in ("level", "requestId", "sessionId", "target", "traceId")} == {
        "level": "info",
        "requestId": HOSTILE,
        "sessionId": public_id(token),
        "target": "echo",
        "traceId": "ab" * 16,
    }
