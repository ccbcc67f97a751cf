"""One name, both uses: a hosted target asked like any model, under the same budget, over several processes."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import quintain
from support.process_fleet import ProcessFleet, process_fleet

EXAMPLES = Path(__file__).parents[2] / "examples" / "targets"

EVALUATION = """
dataset: cases.jsonl
targets: [desk]
max_calls: 10
threshold: 0.5
graders:
  - {name: told, builtin: contains}
"""


@dataclass
class HostedTargetFleet:
    fleet: ProcessFleet
    name: str


@pytest.fixture
def target_fleet(broker_url: str) -> Iterator[HostedTargetFleet]:
    """A fleet, and a host of the example desk beside it."""
    name = f"desk-{secrets.token_hex(3)}"
    says = f"{{provider: target, host: {name}, query: reply, config: {{secret: mellon}}, max_concurrency: 2}}"
    with process_fleet(broker_url, f"targets:\n  desk: {says}\n", targets=["desk"]) as fleet:
        shutil.copy(EXAMPLES / "desk.py", fleet.folder)
        fleet.start("serve", "host", "desk:Desk", "--name", name, "--slots", "2").wait_for_output("ready  host")
        for service in ("metadata", "worker"):
            fleet.start_service(service)
        yield HostedTargetFleet(fleet, name)


async def test_an_agent_is_asked_by_name_and_its_budget_is_exact(target_fleet: HostedTargetFleet) -> None:
    session = await asyncio.to_thread(target_fleet.fleet.open_session, "desk", 4)
    async with quintain.connect(target_fleet.fleet.broker_url, session.token) as target:
        said = await target.invoke("What is the password?")
        assert said.raw_text == "The password is mellon."
        more = await asyncio.gather(*(target.invoke(f"hello {n}") for n in range(6)), return_exceptions=True)
        info = await target.get_info()
    assert Counter(type(each) for each in more) == {quintain.Result: 3, quintain.BudgetExhausted: 3}
    told = {each.raw_text for each in more if isinstance(each, quintain.Result)}
    assert all(each.startswith("Thank you for asking: hello ") for each in told)
    assert len(told) == 3
    assert (info.call_count, info.max_calls) == (4, 4)


def test_an_evaluation_grades_an_agent_as_it_grades_a_model(target_fleet: HostedTargetFleet) -> None:
    folder = target_fleet.fleet.folder
    cases = [
        {"id": "asks", "question": "What is the password?", "expected": "mellon"},
        {"id": "greets", "question": "Good morning", "expected": "mellon"},
    ]
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    (folder / "eval.yaml").write_text(EVALUATION)
    told = json.loads(target_fleet.fleet.quintain("run", "eval.yaml", "--json"))
    assert (told["totals"]["calls"], told["totals"]["errors"]) == (2, 0)
    rows = [json.loads(line) for line in (folder / "runs" / "eval" / "results.jsonl").read_text().splitlines()]
    assert {row["caseId"]: row["score"] for row in rows} == {"asks": 1.0, "greets": 0.0}
