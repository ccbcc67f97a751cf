"""Conversations of a run: what is said in each turn, what the row has of it, and what a loss or a failure leaves."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from quintain.contracts.agents import MAX_STEPS_BYTES, AgentStep, Continuation
from quintain.contracts.invoke import InvokeRequest, OutputMessage, Result, ToolCall
from quintain.errors import ConversationLost, Fault, ProviderFailed, WorkerLost
from quintain.graders import Case, SimulatedUser
from quintain.settings import read_settings
from quintain_runner.engine.preflight import check_evaluation
from quintain_runner.engine.run_settings import RunOptions, inspect_evaluation
from quintain_runner.plan.cases import parse_jsonl, require_question
from quintain_runner.plan.changes import input_fingerprint
from quintain_runner.plan.conversation import MAX_ATTEMPTS, most_asks, most_turns, planned_ids
from quintain_runner.report.exports import write_agentv_run
from quintain_runner.report.inspect_export import write_inspect_logs
from quintain_runner.report.report_files import render_markdown, write_csv
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode
from quintain_runner.results.bill import SIMULATED_USER
from quintain_runner.results.row import Row, RowStatus
from quintain_view.case_page import CaseOrigin, ShownAnswer, case_page
from support.evaluations import JUDGED, EvaluationFolder, Json, write_evaluation, write_script
from support.fake_client import FakeClient

TURNS: Json = {"id": "talk", "turns": ["one", "two", "three", "four", "five"]}
USER = {"target": "sim", "goal": "buy tea", "max_turns": 4}


def said(request: InvokeRequest) -> list[str]:
    return [f"{message.role}: {message.content}" for message in request.messages or []]


class Talker:
    """Answers with the number of the turn, and keeps what each was asked; some turns fail."""

    def __init__(self, *user_says: str, held: bool = False) -> None:
        self.held = held
        self.asked: list[tuple[str, int]] = []
        self.failures: dict[int, list[Fault]] = {}
        self.user_says = list(user_says)

    async def __call__(self, request: InvokeRequest) -> str:
        if request.grader == SIMULATED_USER:
            return self.user_says.pop(0)
        turn = request.turn
        self.asked.append((turn.conversation_id, turn.number))
        if failures := self.failures.get(turn.number):
            raise failures.pop(0)
        return f"answer {turn.number}"


class HoldingClient(FakeClient):
    """A session whose answers come from a worker that holds their conversations."""

    def _result(self, request: InvokeRequest, text: str) -> Result:
        return super()._result(request, text).with_fields(continuation=Continuation(route="bot/worker"))


ANY: Json = {"name": "any", "builtin": "regex", "pattern": "."}


def folder_of(
    path: Path, rows: list[Json], talker: Talker, *, client: FakeClient | None = None, **settings: object
) -> EvaluationFolder:
    write_evaluation(path, rows, [ANY], **settings)
    if client is None:
        client = (HoldingClient if talker.held else FakeClient)(talker, targets=("bot", "sim"))
    return EvaluationFolder(path, client)


def shown_answer(row: Row) -> ShownAnswer:
    """The answer on the page of its case."""
    return case_page("talk", [row], CaseOrigin("eval.yaml", "runs")).answers[0]


async def test_each_turn_is_a_call_with_all_that_was_said(tmp_path: Path) -> None:
    talker = Talker()
    folder = folder_of(tmp_path, [TURNS], talker)
    summary = await folder.run()
    assert (summary.exit_code, summary.total.calls) == (ExitCode.PASSED, 5)
    talked = ["user: one", "assistant: answer 1", "user: two", "assistant: answer 2", "user: three"]
    assert said(folder.client.requests[2]) == talked
    assert len(set(folder.client.request_ids)) == 5
    (row,) = folder.rows()
    assert (row.output, row.calls, row.duration_ms, row.token_usage.input) == ("answer 5", 5, 25.0, 50)
    turns = row.turns()
    told = {turn.question: turn.output for turn in turns}
    assert told == {word: f"answer {number}" for number, word in enumerate(TURNS["turns"], start=1)}
    assert [turn.answer and turn.answer.request_id for turn in turns] == folder.client.request_ids
    assert [request.turn and request.turn.last for request in folder.client.requests] == [False] * 4 + [True]


async def test_a_simulated_user_sees_the_roles_the_other_way_round_and_ends_it(tmp_path: Path) -> None:
    talker = Talker("tea, please", " DONE\n")
    folder = folder_of(tmp_path, [{"id": "shop", "question": "hello", "user": USER}], talker)
    summary = await folder.run()
    (row,) = folder.rows()
    assert [(turn.question, turn.output) for turn in row.turns()] == [(None, "answer 1"), ("tea, please", "answer 2")]
    assert (row.calls, row.conversation.user_calls, row.conversation.stopped) == (4, 2, True)
    asked = [request for request in folder.client.requests if request.target == "sim"]
    assert said(asked[1])[1:] == ["assistant: hello", "user: answer 1", "assistant: tea, please", "user: answer 2"]
    assert "buy tea" in (asked[0].system_prompt or "")
    assert not any("DONE" in line for request in folder.client.requests for line in said(request))
    assert summary.total.calls == 4


@pytest.mark.parametrize(
    ("says", "failure", "status", "output", "user_calls", "is_ended"),
    [
        (["1", "2", "3", "4"], None, "graded", "answer 4", 4, False),
        (["tea", "DONE"], None, "graded", "answer 1", 2, True),
        (["tea", ""], None, "user_failed", None, 2, True),
        ([""], None, "user_failed", None, 1, False),
        (["DONE"], None, "user_failed", None, 1, False),
        (["tea", "milk"], ProviderFailed("no", charged=True), "provider_error", None, 2, True),
    ],
)
async def test_a_simulated_user_is_asked_as_often_as_it_may_and_who_holds_the_conversation_knows_of_its_end(
    tmp_path: Path, says: list[str], failure: Fault | None, status: str, output: str, user_calls: int, is_ended: bool
) -> None:
    talker = Talker(*says, held=True)
    talker.failures = {} if failure is None else {2: [failure]}
    folder = folder_of(tmp_path, [{"id": "shop", "user": USER}], talker)
    await folder.run()
    (row,) = folder.rows()
    assert (row.status.value if row.error is None else row.error.code, row.output) == (status, output)
    assert (row.conversation.user_calls, row.conversation.stopped) == (user_calls, status == "graded" and is_ended)
    assert len(row.turns()) == len(talker.asked) - (failure is not None)
    # The last turn says by itself that it is the last.
    assert folder.client.ended_conversations == ([talker.asked[0][0]] if is_ended else [])


async def test_the_same_command_goes_on_at_the_first_turn_without_an_answer(tmp_path: Path) -> None:
    talker = Talker()
    talker.failures[3] = [ProviderFailed("not reached", charged=False)]
    folder = folder_of(tmp_path, [TURNS], talker)
    await folder.run()
    (row,) = folder.rows()
    assert (row.status, row.calls, len(row.turns()), row.output) == (RowStatus.ERROR, 2, 2, None)
    await folder.run()
    row = folder.rows_by_case()["talk"]
    assert (row.status, row.calls, row.tries, len(row.turns())) == (RowStatus.GRADED, 5, 2, 5)
    assert [number for _, number in talker.asked] == [1, 2, 3, 3, 4, 5]
    # A changed turn asks the conversation again.
    write_evaluation(tmp_path, [{**TURNS, "turns": ["one", "other"]}], [ANY])
    await folder.run()
    assert folder.plan.asked_again == 1
    assert [turn.question for turn in folder.rows_by_case()["talk"].turns()] == ["one", "other"]


async def test_what_an_agent_did_before_a_failure_is_in_the_row(tmp_path: Path) -> None:
    fault = ProviderFailed("no", charged=True)
    large = "x" * (MAX_STEPS_BYTES - 1000)
    fault.steps = [AgentStep(operation="execute_tool", tool="pay", result=large)]
    talker = Talker()
    talker.failures[2] = [fault]
    folder = folder_of(tmp_path, [TURNS], talker)
    await folder.run()
    (row,) = folder.rows()
    assert [step.tool for step in row.error.steps or ()] == ["pay"]
    # Half of what a row may have of steps is left to the turns before.
    assert len(row.to_line()) < MAX_STEPS_BYTES
    assert row.error.steps_cut is not None
    timeline = shown_answer(row).timeline
    assert [step.title for step in timeline.steps if step.kind == "tool"] == ["pay"]
    assert any("characters of texts" in note for note in timeline.notes)
    assert row.without_content().error == row.error.with_fields(steps=None, steps_cut=None)
    (path,) = write_inspect_logs(tmp_path / "logs", read_report(folder.output))
    (sample,) = json.loads(path.read_text())["samples"]
    assert [call["function"] for message in sample["messages"] for call in message.get("tool_calls", ())] == ["pay"]


@pytest.mark.parametrize("fault", [ConversationLost("gone", charged=False), WorkerLost("lost")])
async def test_a_conversation_that_is_lost_begins_again_and_its_turns_are_counted(tmp_path: Path, fault: Fault) -> None:
    talker = Talker(held=True)
    talker.failures[3] = [fault]
    folder = folder_of(tmp_path, [TURNS], talker)
    summary = await folder.run()
    (row,) = folder.rows()
    charged = int(fault.charged is not False)
    assert (row.status, row.calls) == (RowStatus.GRADED, 7 + charged)
    assert (row.conversation.attempts, row.conversation.lost_turns) == (2, 2)
    assert Counter(name for name, _ in talker.asked) == Counter({talker.asked[0][0]: 3, talker.asked[-1][0]: 5})
    assert (summary.total.lost_turns, summary.total.calls) == (2, 7 + charged)
    assert folder.record["totals"]["lostTurns"] == 2
    report = read_report(folder.output)
    write_csv(tmp_path / "rows.csv", report)
    (cells,) = csv.DictReader((tmp_path / "rows.csv").read_text(encoding="utf-8-sig").splitlines())
    assert (cells["turns"], cells["lost_turns"]) == ("5", "2")
    assert "2 turns of conversations were lost" in render_markdown(report, "quintain run eval.yaml")
    assert "2 turns lost" in dict(shown_answer(row).facts)["turns"]


async def test_a_conversation_is_begun_so_often_at_most(tmp_path: Path) -> None:
    talker = Talker(held=True)
    talker.failures[2] = [ConversationLost("gone", charged=False) for _ in range(9)]
    folder = folder_of(tmp_path, [TURNS], talker)
    await folder.run()
    (row,) = folder.rows()
    assert (row.status, row.error.code, len(talker.asked)) == (RowStatus.ERROR, "conversation_lost", 2 * MAX_ATTEMPTS)
    # A worker held it: the next command cannot go on with it.
    talker.failures.clear()
    await folder.run()
    assert [number for _, number in talker.asked[-5:]] == [1, 2, 3, 4, 5]


TELLS_ITS_MESSAGES = """
import json, sys
told = [message["content"] for message in json.load(sys.stdin)["messages"]]
print(json.dumps({"score": 1, "reasoning": json.dumps(told)}))
"""


async def test_graders_get_the_whole_conversation(tmp_path: Path) -> None:
    program = write_script(tmp_path, "grade.py", TELLS_ITS_MESSAGES)
    talker, talked = Talker(), ["one", "answer 1", "two", "answer 2"]

    async def answer(request: InvokeRequest) -> str:
        return '{"pass": true}' if request.target == "judge" else await talker(request)

    (tmp_path / "prompt.md").write_text("Was it kind?")
    write_evaluation(tmp_path, [{**TURNS, "turns": ["one", "two"]}], [{"name": "program", "command": program}, JUDGED])
    folder = EvaluationFolder(tmp_path, FakeClient(answer, targets=("bot", "judge")))
    await folder.run()
    (row,) = folder.rows()
    assert json.loads(row.graders["program"].reason) == talked
    # It is graded again from the row.
    (tmp_path / "prompt.md").write_text("Was it polite?")
    await folder.run()
    assert folder.called("bot", "judge") == (0, 1)
    judgements = [request.question for request in folder.client.requests if request.target == "judge"]
    assert [all(word in told for word in talked) for told in judgements] == [True, True]
    assert folder.rows_by_case()["talk"].turns()[0].output == "answer 1"


async def test_a_small_budget_in_calls_buys_whole_conversations(tmp_path: Path) -> None:
    rows: list[Json] = [{"id": f"talk-{number}", "turns": ["one", "two", "three"]} for number in range(4)]
    talker = Talker()
    client = HoldingClient(talker, targets=("bot", "sim"), max_calls=8)
    summary = await folder_of(tmp_path, rows, talker, client=client, max_calls=8).run()
    assert (summary.exit_code, summary.total.graded, summary.total.calls) == (ExitCode.BUDGET_SPENT, 2, 6)
    assert client.ended_conversations == [], "what the budget cuts is held for the next command"


class CallingClient(FakeClient):
    """A session whose target calls a tool where it should say "call"."""

    def _result(self, request: InvokeRequest, text: str) -> Result:
        if text != "call":
            return super()._result(request, text)
        called = OutputMessage(content="", tool_calls=[ToolCall(id="1", name="search", arguments="{}")])
        return super()._result(request, text).with_fields(output=[called])


@pytest.mark.parametrize(("answers", "asked"), [(["call"], 1), (["fine", "call"], 2)])
async def test_a_tool_call_that_nobody_answers_ends_a_conversation(
    tmp_path: Path, answers: list[str], asked: int
) -> None:
    said_now = [*answers]

    async def answer(_: InvokeRequest) -> str:
        return said_now.pop(0)

    turns: Json = {"id": "talk", "turns": ["one", "two"]}
    folder = folder_of(tmp_path, [turns], Talker(), client=CallingClient(answer))
    await folder.run()
    (row,) = folder.rows()
    assert (len(folder.client.requests), row.calls) == (asked, asked)
    if asked == 2:
        assert (row.error, row.status) == (None, RowStatus.GRADED)
        return
    assert (row.status, row.error.code) == (RowStatus.ERROR, "tool_call_unanswered")
    assert "search" in row.error.error
    # The same command asks the conversation again, and the model may answer now.
    said_now += ["fine", "fine"]
    await folder.run()
    assert folder.rows_by_case()["talk"].status is RowStatus.GRADED
    assert said(folder.client.requests[-1]) == ["user: one", "assistant: fine", "user: two"]


async def test_an_answer_without_text_is_no_empty_message(tmp_path: Path) -> None:
    talker = Talker("tea", "are you there?", "DONE")

    async def answer(request: InvokeRequest) -> str:
        return await talker(request) if request.target == "sim" else " "

    client = FakeClient(answer, targets=("bot", "sim"))
    folder = folder_of(tmp_path, [{"id": "shop", "user": USER}], talker, client=client)
    await folder.run()
    by_bot, by_sim = ([one for one in folder.client.requests if one.target == name] for name in ("bot", "sim"))
    assert said(by_bot[1]) == ["user: tea", "user: are you there?"]
    # A model that speaks must not see its own words last.
    assert [message.role for message in by_sim[1].messages or []] == ["user", "assistant", "user"]
    assert all(str(message.content).strip() for one in by_sim for message in one.messages or [])


async def test_a_changed_simulated_user_asks_its_conversations_again(tmp_path: Path) -> None:
    talker = Talker(*["tea", "DONE"] * 3)
    rows: list[Json] = [{"id": "shop", "user": USER}, {**TURNS, "id": "plain"}]
    folder = folder_of(tmp_path, rows, talker)
    await folder.run()
    await folder.run()
    assert (folder.plan.kept, folder.plan.asked_again) == (2, 0)
    before, client = folder.client.request_ids[:], folder.client
    client.fingerprints["sim"] = "another"
    await folder.run()
    assert (folder.plan.kept, folder.plan.asked_again) == (1, 1)
    assert list(folder.plan.asking_reasons) == ["simulated user sim changed"]
    assert not {*client.request_ids[len(before) :]} & {*before}
    # The first answer to the same words is in the run's store.
    assert len(client.request_ids) == len(before) + 2
    # One that changes within a run makes no row.
    client.answered_fingerprints["sim"], talker.user_says = "changed meanwhile", ["tea", "DONE"]
    client.fingerprints["sim"] = "a third"
    await folder.run()
    row = folder.rows_by_case()["shop"]
    assert (row.error.code, row.output) == ("target_changed", None)


async def test_a_question_or_messages_may_begin_and_exports_have_every_turn(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    begins: list[Json] = [
        {"id": "q", "question": "first", "turns": ["then"]},
        {"id": "m", "messages": history, "turns": ["c"]},
    ]
    folder = folder_of(tmp_path, begins, Talker())
    await folder.run()
    asked = {(one.eval_case_id, one.turn.number): said(one) for one in folder.client.requests if one.turn}
    assert asked[("q", 2)] == ["user: first", "assistant: answer 1", "user: then"]
    assert asked[("m", 1)] == ["user: a", "assistant: b", "user: c"]
    assert len(asked) == 3
    assert folder.rows_by_case()["q"].turns()[0].question is None
    (path,) = write_inspect_logs(tmp_path / "logs", read_report(folder.output))
    sample = next(one for one in json.loads(path.read_text())["samples"] if one["id"] == "q")
    told = [f"{message['role']}: {message['content']}" for message in sample["messages"]]
    assert told == ["user: first", "assistant: answer 1", "user: then", "assistant: answer 2"]
    assert (sample["input"], sample["output"]["completion"]) == ("first", "answer 2")
    write_agentv_run(tmp_path / "agentv", read_report(folder.output))
    shown = [path.read_text() for path in (tmp_path / "agentv").glob("**/input.md")]
    assert [("user", "first"), ("assistant", "answer 1"), ("user", "then")] in [
        re.findall(r"@\[(\w+)\]:\n(.*)", text) for text in shown
    ]


def test_turns_and_the_user_are_part_of_the_input() -> None:
    cases = [
        Case(id="c", question="q"),
        Case(id="c", question="q", turns=["a"]),
        Case(id="c", question="q", turns=["b"]),
        Case(id="c", question="q", user=SimulatedUser(target="sim", goal="a")),
        Case(id="c", question="q", user=SimulatedUser(target="sim", goal="a", max_turns=2)),
    ]
    assert len({input_fingerprint(case) for case in cases}) == 5
    assert [(most_turns(case), most_asks(case)) for case in cases] == [(1, 1), (2, 2), (2, 2), (8, 15), (2, 3)]
    for case in cases[1:]:
        assert len(set(planned_ids(case, "run-1"))) == most_asks(case)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        *(({"turns": []}, "turns"), ({"turns": ["a", "  "]}, "turns"), ({"turns": "a"}, "turns")),
        ({"turns": ["a"], "user": USER}, "turns and user"),
        ({"user": {"target": "sim"}}, "goal"),
        ({"user": {"target": "sim", "goal": " "}}, "goal"),
        ({"user": {"goal": "g"}}, "target"),
        ({"user": {**USER, "max_turns": 0}}, "max_turns"),
        ({"user": {**USER, "max_turn": 3}}, "max_turn"),
        ({"user": {"name": "Ann"}}, "turns"),
    ],
)
def test_a_conversation_that_cannot_be_held_is_refused_by_name(row: Json, problem: str) -> None:
    ((_, parsed),) = parse_jsonl([json.dumps({"id": "c", **row}).encode()])
    assert problem in str(require_question(parsed))


SHOP: Json = {"id": "shop", "user": USER}
ONCE: Json = {"id": "one", "question": "q"}
TARGETS = {
    "hosted": {"provider": "target"},
    "echo": {"provider": "mock"},
    "sim": {"provider": "mock"},
    "once": {"provider": "agent", "agent": "bot:once"},
    "chat": {"provider": "agent", "agent": "bot:chat"},
}


@pytest.mark.parametrize(
    ("row", "settings", "problem"),
    [
        (ONCE, {"targets": ["hosted"]}, None),
        (TURNS, {"targets": ["hosted"]}, "target hosted takes one question"),
        (TURNS, {"targets": ["once", "chat"]}, "target once takes one question"),
        (TURNS, {"targets": ["chat", "echo"]}, None),
        ({"id": "c", "question": "q", "user": "ann"}, {"targets": ["hosted"]}, None),
        (SHOP, {"targets": ["echo"]}, None),
        ({**SHOP, "user": {**USER, "target": "smi"}}, {"targets": ["echo"]}, "user.target: unknown target 'smi'"),
        (TURNS, {"targets": ["echo"], "prompts": ["Say {{ id }}"]}, "turns or a user"),
        (TURNS, {"targets": ["echo"], "prompts": [{"name": "brief", "system": "Be brief."}]}, None),
    ],
)
async def test_what_cannot_hold_a_conversation_is_a_problem(
    tmp_path: Path, row: Json, settings: Json, problem: str | None
) -> None:
    (tmp_path / "bot.py").write_text("def once(text): return text\ndef chat(messages): return str(messages)\n")
    targets = {name: TARGETS[name] for name in ("sim", *settings["targets"])}
    (tmp_path / "quintain.yaml").write_text(json.dumps({"targets": targets}))
    path = write_evaluation(tmp_path, [row], [ANY], **settings)
    found = await inspect_evaluation(RunOptions(path=path, output=tmp_path / "out"), read_settings({}))
    assert [problem in told for told in found.problems] == ([] if problem is None else [True])


async def test_the_estimate_counts_all_turns_and_what_a_user_may_say(tmp_path: Path) -> None:
    (tmp_path / "quintain.yaml").write_text(json.dumps({"targets": TARGETS}))
    path = write_evaluation(tmp_path, [ONCE, TURNS, SHOP], [ANY], targets=["echo"])
    report = await check_evaluation(RunOptions(path=path), read_settings({}))
    assert report.problems == []
    assert (report.estimate.calls.answers, report.estimate.calls.most) == (1 + 5 + 8, 14)
    assert report.estimate.left_out == [SIMULATED_USER]
