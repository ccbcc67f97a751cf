"""A worker is killed while an agent works for it: nobody asks the agent again, because it may have acted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.command_line import command_line
from support.evaluations import rows_of
from support.process_fleet import ADMIN_TOKEN, process_fleet
from support.quick import lease_variable


class Endpoint(ThreadingHTTPServer):
    """Answers nothing before ``released``, and counts its requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.released = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.asked += 1
                endpoint.released.wait(120)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


#: Writes down that it was asked, and does not answer.
PROGRAM = """
import sys, time
with open("asked.txt", "a") as asked:
    for line in sys.stdin:
        print("asked", file=asked, flush=True)
        time.sleep(120)
"""


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["http", "jsonl"])
def test_an_agent_is_asked_once(broker_url: str, endpoint: Endpoint, kind: str) -> None:
    target = "{provider: command, protocol: jsonl, command: [python, agent.py]}"
    if kind == "http":
        target = f'{{provider: http, url: "http://127.0.0.1:{endpoint.server_port}/", body: {{q: "{{{{ prompt }}}}"}}}}'
    with process_fleet(broker_url, f"targets:\n  desk: {target}\n", targets=["desk"]) as fleet:
        (fleet.folder / "agent.py").write_text(PROGRAM)
        (fleet.folder / "asked.txt").touch()

        def asked() -> int:
            return endpoint.asked + len((fleet.folder / "asked.txt").read_text().splitlines())

        fleet.extra_env |= lease_variable()
        grader = {"name": "any", "builtin": "regex", "pattern": "."}
        (fleet.folder / "eval.yaml").write_text(json.dumps({"dataset": "cases.jsonl", "graders": [grader]}))
        (fleet.folder / "cases.jsonl").write_text('{"id": "a", "question": "Book it"}\n')
        _, worker = (fleet.start_service(name) for name in ("metadata", "worker"))
        env = {"QUINTAIN_BROKER_URL": broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
        with command_line(fleet.folder, env) as shell:
            running = shell.start("run", "eval.yaml", "--output", "run")
            running.wait_for(lambda _: asked() == 1, seconds=60)
            worker.kill()
            fleet.start("serve", "worker")
            ended = running.wait(seconds=90)
        assert ended.code == 1, ended
        (row,) = rows_of(fleet.folder / "run")
        assert (row["status"], row["error"]["code"], row["calls"]) == ("inDoubt", "worker_lost", 1)  # type: ignore[index]
        assert asked() == 1
