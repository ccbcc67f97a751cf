"""``quintain run`` and ``check --probe`` against a provider that refuses every call, or that nobody listens for."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.evaluations import rows_of, write_files

CASES = 120
CONCURRENCY = 16

#: In place of a status: the provider reads the request and closes the connection.
CLOSE = 0
OUTPUT = Path("runs") / "eval"

#: One try each: a request at the stub is a trial.
CONFIG = """
targets:
  model: {{provider: openai, model: m, base_url: "{model_url}", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  closed: {{provider: openai, model: m, base_url: "http://127.0.0.1:9/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  echo: {{provider: mock}}
"""

EVALUATION = "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n"


class StubProvider(ThreadingHTTPServer):
    """An OpenAI-compatible provider that answers with the question, or with an error while it is told one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StubHandler)
        self.failing_status: int | None = None
        self.questions: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def request_count(self) -> int:
        return sum(self.questions.values())


class _StubHandler(BaseHTTPRequestHandler):
    server: StubProvider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = str(body["messages"][-1]["content"])
        with self.server.lock:
            self.server.questions[question] += 1
        status = self.server.failing_status
        if status == CLOSE:
            self.close_connection = True
            return
        if status is None:
            message = {"role": "assistant", "content": question}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer: dict[str, object] = {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [choice],
            }
        else:
            answer = {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}}
        data = json.dumps(answer).encode()
        self.send_response(status or 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name is the base class's
        """Nothing on stderr."""


@pytest.fixture
def provider() -> Iterator[StubProvider]:
    with StubProvider() as stub:
        thread = threading.Thread(target=stub.serve_forever)
        thread.start()
        yield stub
        stub.shutdown()
        thread.join()


@pytest.fixture
def evaluation_shell(shell: CommandLine, provider: StubProvider) -> CommandLine:
    """A shell in a folder with these cases and targets of which one is the stub's and one is nobody's."""
    config = CONFIG.format(model_url=provider.url)
    write_files(shell.folder, cases=CASES, quintain_yaml=config, eval_yaml=EVALUATION)
    return shell.with_environment({"KEY": "sk-test"})


def run_words(*targets: str) -> list[str]:
    return [
        "run",
        "eval.yaml",
        "--concurrency",
        str(CONCURRENCY),
        *(word for name in targets for word in ("--target", name)),
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("status", "code"), [(401, "target_unavailable"), (503, "provider_error")])
def test_a_provider_that_refuses_every_call_is_asked_a_few_times_and_the_next_run_asks_the_rest(
    evaluation_shell: CommandLine, provider: StubProvider, status: int, code: str
) -> None:
    provider.failing_status = status
    ended = evaluation_shell.run(*run_words("model", "echo"), code=1)
    asked = provider.request_count
    assert 20 <= asked <= 20 + CONCURRENCY
    rows = Counter((row["target"], row["status"]) for row in rows_of(evaluation_shell.folder / OUTPUT))
    assert rows == {("model", "error"): asked, ("echo", "graded"): CASES}
    note, last = [line for line in ended.stdout.splitlines() if line.startswith(("parked", "exit"))]
    assert note.startswith(f"parked model after 20 errors in a row; the last: {code}: openai ")
    assert f"HTTP {status}" in note
    assert f"exit 1: model is parked after errors, {CASES - asked} trials wait and {asked} erred" in last
    record = json.loads((evaluation_shell.folder / OUTPUT / "run.json").read_text())
    assert (list(record["parkedTargets"]), record["parkedTargets"]["model"]["code"]) == (["model"], code)
    shown = evaluation_shell.run("report", str(OUTPUT)).stdout
    assert note in shown

    provider.failing_status = None
    provider.questions.clear()
    command = re.search(r"the same command goes on: quintain (.*)", last)
    assert command is not None
    evaluation_shell.run(*command[1].split())
    assert provider.questions == {f"q{number}": 1 for number in range(1, CASES + 1)}
    assert "parkedTargets" not in json.loads((evaluation_shell.folder / OUTPUT / "run.json").read_text())


@pytest.mark.timeout(120)
def test_a_closed_port_stops_the_run_and_programs_are_told_why(evaluation_shell: CommandLine) -> None:
    ended = evaluation_shell.run(*run_words("closed"), "--json", code=1)
    parked = ended.json["parkedTargets"]
    assert isinstance(parked, dict)
    assert parked["closed"]["code"] == "provider_error"
    assert "could not be reached" in parked["closed"]["error"]
    assert 20 <= len(rows_of(evaluation_shell.folder / OUTPUT)) <= 20 + CONCURRENCY


@pytest.mark.timeout(120)
def test_fail_fast_ends_the_run_at_the_first_error_and_0_never(
    evaluation_shell: CommandLine, provider: StubProvider
) -> None:
    provider.failing_status = 401
    ended = evaluation_shell.run(*run_words("model"), "--fail-fast", code=1)
    assert 1 <= provider.request_count <= 1 + CONCURRENCY
    assert "parked model after its first error, with --fail-fast" in ended.stdout
    assert ended.stdout.rstrip().endswith("--fail-fast")
    provider.questions.clear()
    ended = evaluation_shell.run(*run_words("model"), "--max-errors", "0", code=1)
    assert provider.request_count == CASES
    assert f"exit 1: {CASES} of {CASES} trials erred" in ended.stdout
    provider.questions.clear()
    kept = evaluation_shell.run(*run_words("model"), "--keep-errors", code=1)
    assert f"{CASES} rows kept ({CASES} without a score)" in kept.stderr
    assert provider.request_count == 0


@pytest.mark.timeout(120)
def test_a_provider_that_closes_the_connection_after_reading_is_asked_again_only_where_that_is_told(
    evaluation_shell: CommandLine, provider: StubProvider
) -> None:
    provider.failing_status = CLOSE
    ended = evaluation_shell.run(*run_words("model"), "--limit", "3", "--json", code=1)
    totals = ended.json["totals"]
    assert isinstance(totals, dict)
    assert (totals["inDoubt"], totals["errors"], totals["calls"]) == (3, 0, 3)
    provider.failing_status = None
    provider.questions.clear()
    kept = evaluation_shell.run(*run_words("model"), "--limit", "3", code=1)
    assert provider.request_count == 0
    assert f"3 of {CASES} trials are in doubt" in kept.stdout
    evaluation_shell.run(*run_words("model"), "--limit", "3", "--in-doubt", "retry")
    assert provider.request_count == 3


@pytest.mark.parametrize("status", [401, 404])
def test_a_probe_tells_the_providers_own_words_of_a_refusal(
    evaluation_shell: CommandLine, provider: StubProvider, status: int
) -> None:
    provider.failing_status = status
    told = evaluation_shell.run("check", "eval.yaml", "--probe", "--target", "model", code=1)
    (line,) = [line for line in told.stdout.splitlines() if line.startswith("probe ")]
    assert "model failed: target_unavailable: " in line
    assert f"HTTP {status}): invalid_request_error" in line
    # What is said of a wrong key may repeat it: only the code is kept.
    assert ('the provider says: "Incorrect API key provided"' in line) is (status != 401)
    assert "sk-test" not in told.stdout + told.stderr


def test_without_a_network_the_probe_tells_which_address_was_not_reached(evaluation_shell: CommandLine) -> None:
    told = evaluation_shell.run("check", "eval.yaml", "--probe", "--target", "closed", "--target", "echo", code=1)
    probes = {line.split()[1]: line for line in told.stdout.splitlines() if line.startswith("probe ")}
    assert "could not be reached" in probes["closed"]
    assert "127.0.0.1:9" in probes["closed"]
    assert "echo answered in " in probes["echo"]
