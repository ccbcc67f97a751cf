"""An agent behind an HTTP endpoint that keeps its conversations itself: `python http_endpoint.py 9998`."""

import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from plain_function import TIDES

threads: dict[str, str] = {}


class Desk(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        thread = asked.get("thread") or str(uuid.uuid4())
        said = threads[thread] = threads.get(thread, "") + asked["input"]
        port = next((port for port in TIDES if port in said), None)
        looked = [{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "tides"}] if port else []
        text = TIDES.get(port, "Which port?")
        body = json.dumps({"output": {"text": text}, "thread": thread, "trace": looked}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Desk).serve_forever()
