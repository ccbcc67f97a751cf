"""A model behind OpenAI's API that answers with a function of its test, in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class ModelRequest(NamedTuple):
    """What a model was asked: its name, the system prompt, and the last message."""

    model: str
    system: str
    question: str


@contextmanager
def function_model(answer: Callable[[ModelRequest], str]) -> Iterator[str]:
    """Serve it on a loopback port, a thread for each connection; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = {message["role"]: message["content"] for message in asked["messages"]}
            message = {
                "role": "assistant",
                "content": answer(ModelRequest(asked["model"], said.get("system", ""), said["user"])),
            }
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            head = {"id": "c", "object": "chat.completion", "created": 1, "model": asked["model"]}
            body = json.dumps({**head, "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            with suppress(ConnectionError):  # of a client that was killed meanwhile
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
