"""A limit in money buys whole rows: a trial begins when money is left for its answer and its graders."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.contracts.agents import MAX_STEPS_BYTES, AgentStep
from quintain.contracts.invoke import InvokeSettings
from quintain.contracts.money import CostTerms, CostTier, picodollars
from quintain.contracts.session import CostUsage, Info
from quintain.errors import BudgetUnavailable
from quintain.graders import Case, SimulatedUser
from quintain_runner.engine import cost_gate
from quintain_runner.engine.cost_gate import BYTES_PER_TOKEN, FIRST_ANSWER_BYTES, CostGate
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders.base import GraderRunner
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.plan.trials import Trial
from quintain_runner.results.answer import Answer
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.spec.asking_graders import JudgeGrader
from support.fake_client import FakeClient
from support.grading_context import grading_context, script_grader, trial_of
from support.judged import result_of

CENT = picodollars(0.01)

#: A dollar for each call, and no tokens.
FLAT = {"bot": CostTerms(per_call_usd=1.0), "configured-judge": CostTerms(per_call_usd=0.25)}


def row_of(trial: Trial, output: str) -> Row:
    status, fingerprints = RowStatus.ERROR, trial.fingerprints
    return Row(case_id="1", target="bot", repeat=1, status=status, output=output, fingerprints=fingerprints)


class Money:
    """A session of this limit, of which some is spent, and some reserved by others."""

    def __init__(self, limit: float) -> None:
        self.limit, self.spent, self.reserved, self.reads = limit, 0.0, 0.0, 0
        self.is_told = True

    async def read(self) -> Info:
        self.reads += 1
        if not self.is_told:
            raise BudgetUnavailable("no metadata service")
        info = await FakeClient(lambda request: "").get_info()
        left = self.limit - self.spent
        return info.with_fields(cost=CostUsage(left_usd=left, free_usd=left - self.reserved))


async def gate_of(
    money: Money | None,
    *graders: GraderRunner,
    costs: dict[str, CostTerms] | None = None,
    agents: frozenset[str] = frozenset(),
) -> CostGate:
    client = FakeClient(lambda request: "")
    context = replace(grading_context(client, *graders), costs=FLAT if costs is None else costs, agents=agents)
    info = await client.get_info() if money is None else await money.read()
    return CostGate(TrialBudget(context, is_scarce=False), info, client.get_info if money is None else money.read)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_gate, "POLL_SECONDS", 0.01)


async def test_trials_begin_while_all_in_progress_fit_with_what_they_can_cost() -> None:
    money = Money(0.05)
    gate = await gate_of(money)
    assert [await gate.enter(2 * CENT), await gate.enter(2 * CENT)] == [True, True]
    waiting = asyncio.create_task(gate.enter(2 * CENT))
    passing = asyncio.create_task(gate.enter(CENT))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert not passing.done(), "a cheaper one does not pass one that waits"
    money.spent = 0.01
    gate.leave(2 * CENT)
    assert await waiting
    money.spent = 0.045
    gate.leave(2 * CENT)
    assert not await passing
    assert gate.refused == CENT
    # What others reserved is waited for.
    money = Money(0.05)
    money.reserved = 0.04
    waiting = asyncio.create_task((await gate_of(money)).enter(2 * CENT))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    money.reserved = 0
    assert await waiting


async def test_what_a_trial_did_not_spend_is_there_for_others_once_it_is_needed() -> None:
    money = Money(1)
    gate, trials = await gate_of(money), 0
    while await gate.enter(10 * CENT):
        trials += 1
        money.spent += 0.02
        gate.leave(10 * CENT)
    assert trials == 46
    assert money.reads < 46, "amounts are read when they are needed, and not for each trial"


async def test_without_a_limit_or_an_answer_nothing_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = await gate_of(None)
    assert (unlimited.most_cost(trial_of(Case(id="1", question="?"))), await unlimited.enter(0)) == (0, True)

    async def once(call: object) -> object:
        return await call()

    monkeypatch.setattr(cost_gate, "call_with_retry", once)
    money = Money(0.05)
    gate = await gate_of(money)
    money.is_told = False
    assert await gate.enter(9 * CENT), "the ledger decides"


async def test_a_trial_can_cost_its_answer_and_its_graders(tmp_path: Path) -> None:
    judge = JudgeGraderRunner(JudgeGrader(name="j", builtin="llm-judge", prompt="judge.md"), "Is it right?")
    program = script_grader(tmp_path, "", name="p", max_calls=3)
    limited = script_grader(tmp_path, "", name="l", max_cost_usd=0.4)
    gate = await gate_of(Money(100), judge, program, limited)
    trial = trial_of(Case(id="1", question="?"))
    # A call of the program is expected; the other one has a limit of its own.
    assert gate.most_cost(trial) == picodollars(1 + 0.25 + 3 * 0.25 + 0.4)
    assert gate.most_cost(trial_of(trial.case, kept=row_of(trial, "Paris"))) == picodollars(0.25 + 3 * 0.25 + 0.4)


async def test_a_judge_is_shown_the_longest_answer_that_the_target_may_give() -> None:
    judge = JudgeGraderRunner(JudgeGrader(name="j", builtin="llm-judge", prompt="judge.md"), "Is it right?")
    a_cent_a_byte = CostTerms(tiers=[CostTier(input_usd=10_000, output_usd=0)], max_tokens=1)
    gate = await gate_of(Money(1), judge, costs={"bot": CostTerms(max_tokens=50), "configured-judge": a_cent_a_byte})

    def shown(**fields: object) -> int:
        return gate.most_cost(trial_of(Case.model_validate({"id": "1", "question": "?", **fields}))) // CENT

    request = shown() - 50 * BYTES_PER_TOKEN
    assert shown(settings=InvokeSettings(max_tokens=7)) == request + 7 * BYTES_PER_TOKEN
    unlimited = await gate_of(Money(1), judge, costs={"configured-judge": a_cent_a_byte})
    trial = trial_of(Case(id="1", question="?"))
    assert unlimited.most_cost(trial) == (request + FIRST_ANSWER_BYTES) * CENT
    unlimited.add_row(row_of(trial, "x" * 9_000))
    assert unlimited.most_cost(trial) == (request + 9_000) * CENT


@pytest.mark.parametrize(
    ("options", "told", "known"),
    [
        ({}, 200_000 - FIRST_ANSWER_BYTES, 3_000),
        ({"max_show_characters": 1_000_000}, MAX_STEPS_BYTES, 3_000),
        ({"max_show_characters": 6_000}, 12_000 - FIRST_ANSWER_BYTES, 3_000),
        ({"show": ["question", "output"]}, 0, 0),
    ],
)
async def test_a_judge_of_an_agent_is_shown_as_many_steps_as_it_may(
    options: dict[str, object], told: int, known: int
) -> None:
    fields = {"name": "j", "builtin": "llm-judge", "prompt": "judge.md", **options}
    judge = JudgeGraderRunner(JudgeGrader.model_validate(fields), "Is it right?")
    a_cent_a_byte = CostTerms(tiers=[CostTier(input_usd=10_000, output_usd=0)], max_tokens=1)
    model = await gate_of(Money(1), judge, costs={"configured-judge": a_cent_a_byte})
    agent = await gate_of(Money(1), judge, costs={"configured-judge": a_cent_a_byte}, agents=frozenset({"bot"}))
    trial = trial_of(Case(id="1", question="?"))
    assert agent.most_cost(trial) - model.most_cost(trial) == told * CENT
    step = AgentStep(operation="execute_tool", tool="x", result="")
    step = step.with_fields(result="x" * (3_000 - len(step.to_wire())))
    model.add_row(row_of(trial, "x"))
    agent.add_row(row_of(trial, "x").with_fields(answer=Answer.of(result_of("x", steps=[step]), "id")))
    assert agent.most_cost(trial) - model.most_cost(trial) == known * CENT


async def test_a_conversation_is_counted_with_its_next_turn_and_its_graders() -> None:
    judge = JudgeGrader(name="kind", builtin="llm-judge", prompt="p", judge_target="configured-judge")
    money = Money(2.5)
    gate = await gate_of(money, JudgeGraderRunner(judge, "Was it kind?"))
    user = SimulatedUser(target="configured-judge", goal="tea")
    assert gate.most_cost(trial_of(Case(id="1", turns=["a", "b", "c"]))) == picodollars(1.25)
    assert gate.most_cost(trial_of(Case(id="1", user=user))) == picodollars(1.5)
    trial = trial_of(Case(id="1", turns=["a", "b", "c"]))
    cost = gate.most_cost(trial)
    assert await gate.enter(cost)
    hold = gate.hold(cost)
    money.spent = 1
    assert await hold.may_go_on(trial, trial.request), "1.5 are left for a turn and its judge"
    money.spent = 2
    assert not await hold.may_go_on(trial, trial.request)
    # What it was counted with is free for what costs less.
    assert await gate.enter(picodollars(0.5))
    hold.leave()
