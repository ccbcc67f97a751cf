"""``quintain run`` and ``check --probe`` against a provider that refuses every call, or that nobody listens for.

Where a run stops, and which faults stop it: ``tests/unit/runner/test_error_limit.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.evaluations import rows_of, write_files
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, model_server
from support.model_wires import chat_answer

CASES = 120
CONCURRENCY = 16
OUTPUT = Path("runs") / "eval"

#: One try each: a request at the provider is a trial.
CONFIG = """
targets:
  model: {{provider: openai, model: m, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  closed: {{provider: openai, model: m, base_url: "http://127.0.0.1:9/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  echo: {{provider: mock}}
"""

EVALUATION = "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n"


def question_of(request: ReceivedRequest) -> str:
    messages = request.body["messages"]
    assert isinstance(messages, list)
    return str(messages[-1]["content"])


def refuse(status: int) -> ScriptedResponse:
    return ScriptedResponse(status=status, body={"error": {"message": "Wrong key", "type": "invalid_request_error"}})


def prepare(shell: CommandLine, server: ModelServer) -> CommandLine:
    """The shell, in a folder with these cases and targets of which one is the server's and one is nobody's."""
    write_files(shell.folder, cases=CASES, quintain_yaml=CONFIG.format(url=server.url), eval_yaml=EVALUATION)
    return shell.with_environment({"KEY": "sk-test"})


@pytest.mark.timeout(180)
async def test_a_provider_that_refuses_the_key_is_asked_no_more_and_the_next_run_asks_the_rest(
    shell: CommandLine,
) -> None:
    async with model_server() as server:
        shell = prepare(shell, server)
        server.response_for = lambda _: refuse(401)
        words = ("run", "eval.yaml", "--concurrency", str(CONCURRENCY), "--target", "model", "--target", "echo")
        ended = await asyncio.to_thread(shell.run, *words, code=1)
        asked = len(server.requests)
        # It is parked once the quota says that the key is refused, and after 20 errors in a row at the latest.
        assert 1 <= asked <= 20 + CONCURRENCY
        rows = Counter((row["target"], row["status"]) for row in rows_of(shell.folder / OUTPUT))
        assert rows == {("model", "error"): asked, ("echo", "graded"): CASES}
        note, last = [line for line in ended.stdout.splitlines() if line.startswith(("parked", "exit"))]
        assert note.startswith(
            ("parked model after openai at 127.0.0.1, key ", "parked model after 20 errors in a row")
        )
        assert "; the last: target_unavailable: openai " in note
        assert f"exit 1: model is parked after errors, {CASES - asked} trials wait and {asked} erred" in last
        assert note in (await asyncio.to_thread(shell.run, "report", str(OUTPUT))).stdout

        server.requests.clear()
        server.response_for = lambda request: ScriptedResponse(body=chat_answer(question_of(request)))
        command = re.search(r"the same command goes on: quintain (.*)", last)
        assert command is not None
        await asyncio.to_thread(shell.run, *command[1].split())
        assert Counter(map(question_of, server.requests)) == {f"q{number}": 1 for number in range(1, CASES + 1)}
        assert "parkedTargets" not in json.loads((shell.folder / OUTPUT / "run.json").read_text())


async def test_a_probe_tells_the_providers_own_words_and_the_address_that_was_not_reached(shell: CommandLine) -> None:
    async with model_server() as server:
        shell = prepare(shell, server)
        for status in (401, 404):
            server.response_for = lambda _, status=status: refuse(status)  # type: ignore[misc]
            words = ("check", "eval.yaml", "--probe", "--target", "model", "--target", "closed", "--target", "echo")
            told = await asyncio.to_thread(shell.run, *words, code=1)
            probes = {line.split()[1]: line for line in told.stdout.splitlines() if line.startswith("probe ")}
            assert "model failed: target_unavailable: " in probes["model"]
            # What is said of a wrong key may repeat it: only the code is kept.
            assert ('the provider says: "Wrong key"' in probes["model"]) is (status != 401)
            assert "127.0.0.1:9" in probes["closed"]
            assert "echo answered in " in probes["echo"]
            assert "sk-test" not in told.stdout + told.stderr
