"""``quintain run`` and ``check --probe`` against a provider that refuses every call, or that nobody listens for.

Where a run stops, and which faults stop it: ``tests/unit/runner/test_scheduler.py``.
"""

from __future__ import annotations

import asyncio

from support.command_line import CommandLine
from support.evaluations import write_files
from support.model_server import ModelServer, ScriptedResponse, model_server

CASES = 120

#: One try each: a request at the provider is a trial.
CONFIG = """
targets:
  model: {{provider: openai, model: m, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  closed: {{provider: openai, model: m, base_url: "http://127.0.0.1:9/v1", api_key: "${{{{ KEY }}}}", max_tries: 1}}
  echo: {{provider: mock}}
"""

EVALUATION = "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n"


def refuse(status: int) -> ScriptedResponse:
    return ScriptedResponse(status=status, body={"error": {"message": "Wrong key", "type": "invalid_request_error"}})


def prepare(shell: CommandLine, server: ModelServer) -> CommandLine:
    """The shell, in a folder with these cases and targets of which one is the server's and one is nobody's."""
    write_files(shell.folder, cases=CASES, quintain_yaml=CONFIG.format(url=server.url), eval_yaml=EVALUATION)
    return shell.with_environment({"KEY": "sk-test"})


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
