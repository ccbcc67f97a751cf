"""What an agent's own calls took and what it reports are one, in its answer and in the ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quintain.contracts.invoke import TokenUsage
from quintain.contracts.session import AGENTS
from quintain.errors import Fault
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import RowError
from support.memory_fleet import MemoryFleet, memory_fleet

#: A call of the model costs $0.40, by 100 tokens of input and 30 of output; ``dear`` has the same price for its own.
CONFIG = """
targets:
  model:
    provider: mock
    response: "an opinion"
    token_usage: {input: 100, output: 30}
    price: &price {input_per_million: 1000, output_per_million: 10000}
  agent: &agent
    provider: command
    protocol: jsonl
    command: [python, agent.py]
    child_session: {targets: [model], max_calls: 8}
  dear: {<<: *agent, price: *price}
  retail: {<<: *agent, price: {per_call: 0.05}}
  slow: {<<: *agent, timeout_seconds: 1}
"""

#: Calls the model as often as it is asked to, and reports what it is told to, or fails as it is told to.
AGENT = """
import json, os, sys, time, urllib.request

for line in sys.stdin:
    times, usage = json.loads(json.loads(line)["prompt"])
    body = json.dumps({"model": "model", "messages": [{"role": "user", "content": "well?"}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    for _ in range(times):
        request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
        urllib.request.urlopen(request).read()
    if usage == "exit":
        sys.exit(3)
    if usage == "hang":
        time.sleep(60)
    if usage == "error":
        print(json.dumps({"type": "error", "message": "lost"}), flush=True)
        continue
    print(json.dumps({"type": "answer", "text": "done", "usage": usage}), flush=True)
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    (tmp_path / "agent.py").write_text(AGENT)
    async with memory_fleet(tmp_path, CONFIG, {"PATH": "/usr/bin:/bin"}) as running:
        yield running


def usage(tokens: tuple[int, int] | None) -> dict[str, int] | None:
    return None if tokens is None else {"input": tokens[0], "output": tokens[1]}


#: The target, how often its agent calls the model, and what it reports; then the tokens and the cost that count, and
#: whether the report says less than the calls.
ROWS = [
    ("agent", 2, (200, 60), (200, 60), 0.8, False),
    ("agent", 2, (150, 60), (200, 60), 0.8, True),
    ("agent", 2, (300, 50), (300, 60), 0.8, True),
    ("agent", 2, None, (200, 60), 0.8, False),
    ("agent", 0, (7, 3), (7, 3), 0.0, False),
    ("agent", 0, None, None, 0.0, False),
    ("dear", 2, (200, 60), (200, 60), 0.8, False),
    ("dear", 2, (300, 70), (300, 70), 1.0, False),
    ("dear", 2, (100, 10), (200, 60), 0.8, True),
    ("retail", 2, (200, 60), (200, 60), 0.85, False),
]


async def test_the_larger_counts_once(fleet: MemoryFleet) -> None:
    for target, calls, reported, tokens, cost, is_less in ROWS:
        async with fleet.client(target, max_calls=50) as client:
            said = await client.invoke(json.dumps([calls, usage(reported)]))
            info = await client.get_info(usage=True)
        expected = None if tokens is None else TokenUsage(input=tokens[0], output=tokens[1])
        assert (said.token_usage, said.cost_usd) == (expected, pytest.approx(cost)), (target, reported)
        assert said.reported_usage == (TokenUsage.model_validate(usage(reported)) if is_less else None)
        bill = Bill.of(info.usage)
        for counted in (info.token_usage, bill.total.token_usage):
            assert (counted.input, counted.output) == (tokens or (0, 0))
        for shown in (bill.total.cost, bill.whole_cost(target)):
            assert (shown.known_usd, shown.unknown) == (pytest.approx(cost), 0)
        lines = {(line.target, line.grader, line.agent, line.calls) for line in info.usage}
        assert lines == {(target, None, None, 1), *[("model", AGENTS, target, calls)] * bool(calls)}


#: The target, how often its agent calls the model, how its turn fails, and with which code; then what the calls cost.
FAILURES = [
    ("agent", 2, "error", "provider_error", 0.8),
    ("retail", 2, "exit", "provider_error", 0.8),
    ("slow", 2, "hang", "timeout", 0.8),
    ("agent", 0, "error", "provider_error", None),
]


async def test_a_turn_that_failed_has_the_cost_of_its_calls(fleet: MemoryFleet) -> None:
    for target, calls, how, code, cost in FAILURES:
        async with fleet.client(target, max_calls=50) as client:
            for _ in ("made", "replayed"):
                with pytest.raises(Fault) as failed:
                    await client.invoke(json.dumps([calls, how]), request_id="r1")
                assert (failed.value.code, failed.value.cost_usd) == (code, cost and pytest.approx(cost)), (target, how)
                assert RowError.of_call(failed.value, "r1").cost_usd == failed.value.cost_usd
            info = await client.get_info(usage=True)
        assert Bill.of(info.usage).whole_cost(target).known_usd >= (cost or 0.0) - 1e-9
