"""Two prompts × two targets × two repeats, by the provider's own count."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from support.command_line import CommandLine
from support.evaluations import rows_of, write_files
from support.model_server import ModelServer, ReceivedRequest, ScriptedResponse, model_server
from support.model_wires import chat_answer

CONFIG = """
targets:
  a: {{provider: openai, model: model-a, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}"}}
  b: {{provider: openai, model: model-b, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}"}}
"""

EVALUATION = """
dataset: cases.jsonl
targets: [a, b]
repeats: 2
reduce: pass@2
by: [topic]
prompts:
  - {name: plain, user: "{{ question }}"}
  - {name: polite, system: "file://polite.txt", messages: [{role: user, content: "Please: {{ question }}"}]}
graders:
  - {name: same, builtin: exact, weight: 2}
"""

CASES = [{"id": f"c{n}", "question": f"q{n}", "expected": f"q{n}", "topic": f"t{n % 2}"} for n in range(3)]

COLUMNS = ["a · plain", "a · polite", "b · plain", "b · polite"]

Question = tuple[str, tuple[tuple[str, str], ...]]


def repeated(request: ReceivedRequest) -> ScriptedResponse:
    """The answer is the last message."""
    return ScriptedResponse(body=chat_answer(messages_of(request)[-1][1]))


def messages_of(request: ReceivedRequest) -> list[tuple[str, str]]:
    messages = request.body["messages"]
    assert isinstance(messages, list)
    return [(str(message["role"]), str(message["content"])) for message in messages]


async def asked(server: ModelServer, shell: CommandLine, code: int = 0) -> tuple[Counter[Question], dict[str, object]]:
    """What one command asked of the provider, and what it printed."""
    server.requests.clear()
    ended = await asyncio.to_thread(shell.run, "run", "eval.yaml", "--json", code=code, env={"KEY": "k"})
    counted = Counter((str(request.body["model"]), tuple(messages_of(request))) for request in server.requests)
    return counted, json.loads(ended.stdout)


def polite(word: str) -> dict[Question, int]:
    """What both models are asked under the second prompt, twice each."""
    return {
        (model, (("system", f"Be {word}."), ("user", f"Please: q{n}"))): 2
        for model in ("model-a", "model-b")
        for n in range(3)
    }


async def test_each_prompt_is_asked_of_each_target_and_a_changed_one_alone_again(shell: CommandLine) -> None:
    async with model_server() as server:
        server.response_for = repeated
        write_files(shell.folder, quintain_yaml=CONFIG.format(url=server.url), eval_yaml=EVALUATION)
        (shell.folder / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in CASES))
        (shell.folder / "polite.txt").write_text("Be polite.\n")
        checked = await asyncio.to_thread(shell.run, "check", "eval.yaml", "--json", env={"KEY": "k"})
        estimate = json.loads(checked.stdout)
        assert (estimate["prompts"], estimate["estimate"]["calls"]["answers"]) == (["plain", "polite"], 24)
        first, said = await asked(server, shell)
        plain = {(model, (("user", f"q{n}"),)): 2 for model in ("model-a", "model-b") for n in range(3)}
        assert first == {**plain, **polite("polite")}
        targets, statistics = said["targets"], said["statistics"]
        assert isinstance(targets, dict)
        assert isinstance(statistics, dict)
        assert {name: (counts["trials"], counts["passed"]) for name, counts in targets.items()} == dict(
            zip(COLUMNS, [(6, 6), (6, 0)] * 2, strict=True)
        )
        reduced = {name: measured["row"]["reduced"] for name, measured in statistics["targets"].items()}
        assert {name: (one["reducer"], one["estimate"]["value"]) for name, one in reduced.items()} == dict(
            zip(COLUMNS, [("pass@2", 1.0), ("pass@2", 0.0)] * 2, strict=True)
        )
        assert {topic: list(columns) for topic, columns in statistics["by"]["topic"].items()} == {
            "t0": COLUMNS,
            "t1": COLUMNS,
        }
        assert (await asked(server, shell))[0] == {}
        (shell.folder / "polite.txt").write_text("Be kind.\n")
        assert (await asked(server, shell))[0] == polite("kind")
        rows = Counter((row["target"], row["prompt"], row["status"]) for row in rows_of(shell.folder / "runs" / "eval"))
        assert rows == {(target, prompt, "graded"): 6 for target in "ab" for prompt in ("plain", "polite")}
        (shell.folder / "polite.txt").write_text("Be {{ manner }}.\n")
        server.requests.clear()
        refused = await asyncio.to_thread(shell.run, "run", "eval.yaml", code=2, env={"KEY": "k"})
        assert "no field 'manner' in 3 of 3 cases (ids 'c0', 'c1', 'c2')" in refused.stderr
        assert server.requests == []
