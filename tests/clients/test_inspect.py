"""Inspect: ``quintain snippet inspect``, a task with one sample that is too long for the model."""

from __future__ import annotations

import json

import pytest

from clients.tool_session import PARAMETERS, ToolSession, assert_sent
from support.client_tools import ClientTool
from support.command_line import command_line

pytestmark = [pytest.mark.tool("inspect"), pytest.mark.timeout(2000)]

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def capitals():
    questions = ["Which way?", "OVERFLOW", "What is it?"]
    return Task(dataset=[Sample(input=one, target="Paris") for one in questions], solver=generate(), scorer=includes())
"""
OPTIONS = (
    "--temperature 0.3 --top-p 0.2 --max-tokens 50 --seed 7 --stop-seqs END --frequency-penalty 0.5"
    " --presence-penalty 0.25 --logprobs --top-logprobs 2 --reasoning-effort high"
    " --display none --log-format json --log-dir logs"
)


async def test_every_parameter_arrives_and_the_overflow_fails_alone(session: ToolSession, tool: ClientTool) -> None:
    printed = await session.print_snippet("inspect")
    session.write("task.py", TASK)
    ended = await session.run(f"{printed.exports}\n{printed.command} {OPTIONS}", tool)
    assert ended.code == 0, ended
    (path,) = (session.folder / "logs").glob("*.json")
    log = json.loads(path.read_text())
    assert log["status"] == "success"
    samples = {sample["input"]: sample for sample in log["samples"]}
    assert samples["OVERFLOW"]["output"]["choices"][0]["stop_reason"] == "model_length"
    for question in ("Which way?", "What is it?"):
        assert samples[question]["output"]["choices"][0]["message"]["content"] == "Paris"
        assert samples[question]["output"]["choices"][0]["logprobs"]["content"][0]["token"] == "Paris"
    assert len(session.bodies) == 3
    for body in session.bodies:
        assert_sent(body, PARAMETERS | {"logprobs": True, "top_logprobs": 2, "reasoning_effort": "high"})
        assert 50 in (body.get("max_tokens"), body.get("max_completion_tokens"))


AGENT = """
from quintain_worker.providers.provider import ProviderAnswer

def say(*parts):
    return {"operation": "chat", "messages": [{"role": "assistant", "parts": list(parts)}]}

def answer(request):
    call = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "tides"}}
    thought = {"type": "reasoning", "content": "Look it up."}
    ran = {"operation": "execute_tool", "tool": "search", "tool_call_id": "c1", "result": "12:40"}
    failed = {"operation": "execute_tool", "tool": "delete", "arguments": [1], "error_type": "Refused"}
    noted = {"role": "log", "name": "bot", "parts": [{"type": "text", "content": "done"}]}
    log = {"operation": "log", "messages": [noted]}
    text = {"type": "text", "content": "At 12:40."}
    return ProviderAnswer(text="At 12:40.", steps=[say(thought, call), ran, failed, log, say(text)])
"""

READ_STEPS = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log
assert len(list_eval_logs("exported")) == 1
log = read_eval_log(sys.argv[1])
assert read_eval_log(sys.argv[1], header_only=True).results == log.results
print(log.status, log.eval.model, log.results.scores[0].metrics["mean"].value)
(sample,) = log.samples
shown = []
for one in sample.messages:
    calls = [(call.id, call.function, call.arguments) for call in getattr(one, "tool_calls", None) or []]
    error = getattr(one, "error", None)
    shown.append((one.role, one.text, calls, getattr(one, "tool_call_id", None), error and error.message))
print(json.dumps(shown))
print(sample.output.message.text, sample.messages[1].content[0].reasoning)
"""


async def test_its_own_reader_finds_what_an_agent_did(session: ToolSession, tool: ClientTool) -> None:
    session.write("quintain.yaml", "targets: {bot: {provider: python, callable: 'agent:answer'}}\n")
    session.write("agent.py", AGENT)
    session.write("cases.jsonl", '{"id": "a", "question": "When is high tide?", "expected": "At 12:40."}\n')
    session.write("eval.yaml", "dataset: cases.jsonl\ngraders: [{name: same, builtin: exact}]\n")
    session.write("read.py", READ_STEPS)
    with command_line(session.folder) as shell:
        shell.run("run", "eval.yaml")
        shell.run("export", "runs/eval", "--to", "inspect", "--output", "exported")
    ended = await session.run("python read.py exported/*.json", tool)
    assert ended.code == 0, ended
    head, messages, said = ended.stdout.splitlines()
    assert head == "success bot 1.0"
    assert json.loads(messages) == [
        ["user", "When is high tide?", [], None, None],
        ["assistant", "", [["c1", "search", {"q": "tides"}]], None, None],
        ["tool", "12:40", [], "c1", None],
        ["assistant", "", [["step-3", "delete", {"arguments": [1]}]], None, None],
        ["tool", "", [], "step-3", "Refused"],
        ["assistant", "done", [], None, None],
        ["assistant", "At 12:40.", [], None, None],
    ]
    assert said == "At 12:40. Look it up."
