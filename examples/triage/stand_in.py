"""Stands in for OpenAI's API, so that docs/tutorial.md can be followed without a key: python stand_in.py PORT

Nothing here understands an email. The right answers are read from cases.csv, and the lists below say which emails each
model gets wrong, and which of them a prompt with rules mends. The judge knows a few words that make a promise.
"""

import csv
import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: How long a model takes, in seconds.
DELAY = 0.3

#: By model, without and with rules in the prompt: the emails that go to another queue.
WRONG_QUEUE = {
    ("gpt-4.1-nano", False): {
        "chain-and-refund": "repair",
        "late-fee": "rental",
        "stolen": "other",
        "lost-key": "repair",
        "gear-and-longer": "repair",
        "deposit-missing": "rental",
    },
    ("gpt-4.1-nano", True): {"lost-key": "repair"},
    ("gpt-4.1", False): {"gear-and-longer": "repair"},
    ("gpt-4.1", True): {},
}

#: The same for emails whose urgency is taken for its opposite.
WRONG_URGENCY = {
    ("gpt-4.1-nano", False): {"child-hurt", "double-booking", "cancel-tomorrow"},
    ("gpt-4.1-nano", True): {"cancel-tomorrow"},
    ("gpt-4.1", False): set(),
    ("gpt-4.1", True): set(),
}

#: The same for replies that promise what nobody has decided yet.
PROMISES = {
    ("gpt-4.1-nano", False): {
        "charged-twice": "We will refund the 86 euros today.",
        "brakes-gone": "The repair is free.",
    },
    ("gpt-4.1-nano", True): {},
    ("gpt-4.1", False): {"chain-and-refund": "We will refund your 40 euros."},
    ("gpt-4.1", True): {"late-fee": "We will refund the fee."},
}

#: What is asked and is no email, as by `quintain check --probe`.
UNKNOWN = {"id": "", "expected": "other", "urgent": "no"}

CASES = {row["question"]: row for row in csv.DictReader((Path(__file__).parent / "cases.csv").open(encoding="utf-8"))}


def triage(model: str, system: str, email: str) -> str:
    """Answer as one of the two models."""
    case, chosen = CASES.get(email, UNKNOWN), (model, "Rules:" in system)
    queue = WRONG_QUEUE[chosen].get(case["id"], case["expected"])
    urgent = (case["urgent"] == "yes") != (case["id"] in WRONG_URGENCY[chosen])
    promise = PROMISES[chosen].get(case["id"], "A colleague will write to you about it.")
    reply = f"Thank you for writing to Harbour Bikes. We have passed your email on to {queue}. {promise}"
    return json.dumps({"queue": queue, "urgent": urgent, "reply": reply})


def judge(shown: str) -> str:
    """Answer as the judge: pass what has no word of a promise."""
    promise = re.search(r"[^.]*\b(refund the|refund your|is free)\b[^.]*\.", shown)
    reason = f"It promises something:{promise[0]}" if promise else "It is polite and promises nothing."
    return json.dumps({"pass": promise is None, "reason": reason})


class ChatApi(BaseHTTPRequestHandler):
    """OpenAI's chat completions, as far as three models need them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model, texts = asked["model"], {message["role"]: message["content"] for message in asked["messages"]}
        system, user = texts.get("system", ""), texts["user"]
        text = judge(user.partition("output>")[2]) if model == "gpt-4.1-mini" else triage(model, system, user)
        time.sleep(DELAY)
        body = json.dumps(
            {
                "id": "stand-in",
                "object": "chat.completion",
                "created": 0,
                "model": model,
                "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}},
                ],
                "usage": {
                    "prompt_tokens": (len(system) + len(user)) // 4,
                    "completion_tokens": len(text) // 4,
                    "total_tokens": (len(system) + len(user)) // 4 + len(text) // 4,
                },
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing: the run says what happens."""


if __name__ == "__main__":
    port = int(sys.argv[1])
    print(f"answering at http://127.0.0.1:{port}/v1", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), ChatApi).serve_forever()
