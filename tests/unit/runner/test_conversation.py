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
from quintain_runner.plan.conversation import MAX_ATTEMPTS, TrialConversation, most_asks, most_turns, planned_ids
from quintain_runner.plan.dataset import CaseSource, check_dataset
from quintain_runner.report.exports import write_agentv_run
from quintain_runner.report.inspect_export import write_inspect_logs
from quintain_runner.report.report_files import render_markdown, write_csv
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode
from quintain_runner.results.bill import SIMULATED_USER
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.spec.evaluation import DatasetSpec
from quintain_view.case_page import CaseOrigin, case_page
from support.evaluations import EvaluationFolder, Json, write_evaluation, write_script
from support.fake_client import FakeClient

TURNS: Json = {"id": "talk", "turns": ["one", "two", "three", "four", "five"]}
USER = {"target": "sim", "goal": "buy tea", "max_turns": 4}


def said(request: InvokeRequest) -> list[str]:
    return [f"{message.role}: {message.content}" for message in request.messages or []]


class Talker:
    """Answers with the number of the turn, and keeps what each was asked; some turns fail."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.asked: list[tuple[str, int]] = []
        self.failures: dict[int, list[Fault]] = {}
        self.user_says: list[str] = []

    async def __call__(self, request: InvokeRequest) -> str:
        if request.grader == SIMULATED_USER:
            return self.user_says.pop(0)
        turn = request.turn
        assert turn is not None
        self.asked.append((turn.conversation_id, turn.number))
        if failures := self.failures.get(turn.number):
            raise failures.pop(0)
        return f"answer {turn.number}"


class HoldingClient(FakeClient):
    """A session whose answers come from a worker that holds their conversations."""

    def _result(self, request: InvokeRequest, text: str) -> Result:
        return super()._result(request, text).with_fields(continuation=Continuation(route="bot/worker"))


def folder_of(
    path: Path, rows: list[Json], talker: Talker, *, client: FakeClient | None = None, **settings: object
) -> EvaluationFolder:
    write_evaluation(path, rows, [{"name": "any", "builtin": "regex", "pattern": "."}], **settings)
    return EvaluationFolder(path, client or FakeClient(talker, targets=("bot", "sim")))


async def test_each_turn_is_a_call_with_all_that_was_said(tmp_path: Path) -> None:
    talker = Talker()
    folder = folder_of(tmp_path, [TURNS], talker)
    summary = await folder.run()
    assert (summary.exit_code, summary.total.calls) == (ExitCode.PASSED, 5)
    assert said(folder.client.requests[2]) == [
        "user: one", "assistant: answer 1", "user: two", "assistant: answer 2", "user: three",
    ]  # fmt: skip
    assert len(set(folder.client.request_ids)) == 5
    (row,) = folder.rows()
    assert (row.output, row.calls, row.duration_ms, row.token_usage.input) == ("answer 5", 5, 25.0, 50)
    turns = row.turns()
    assert [(turn.question, turn.output) for turn in turns] == [
        (word, f"answer {number}")
        for number, word in enumerate(TURNS["turns"], start=1)  # type: ignore[arg-type, var-annotated]
    ]
    assert [turn.answer and turn.answer.request_id for turn in turns] == folder.client.request_ids
    assert [request.turn and request.turn.last for request in folder.client.requests] == [False] * 4 + [True]


async def test_a_question_or_messages_may_begin(tmp_path: Path) -> None:
    begins: list[Json] = [
        {"id": "q", "question": "first", "turns": ["then"]},
        {
            "id": "m",
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "turns": ["c"],
        },
    ]
    folder = folder_of(tmp_path, begins, Talker())
    await folder.run()
    asked = {
        (request.eval_case_id, request.turn.number): said(request) for request in folder.client.requests if request.turn
    }
    assert asked[("q", 2)] == ["user: first", "assistant: answer 1", "user: then"]
    assert asked[("m", 1)] == ["user: a", "assistant: b", "user: c"]
    assert len(asked) == 3
    assert folder.rows_by_case()["q"].turns()[0].question is None


async def test_a_simulated_user_sees_the_roles_the_other_way_round_and_ends_it(tmp_path: Path) -> None:
    talker = Talker()
    talker.user_says = ["tea, please", " DONE\n"]
    folder = folder_of(tmp_path, [{"id": "shop", "question": "hello", "user": USER}], talker)
    summary = await folder.run()
    (row,) = folder.rows()
    assert [(turn.question, turn.output) for turn in row.turns()] == [(None, "answer 1"), ("tea, please", "answer 2")]
    assert row.conversation is not None
    assert (row.calls, row.conversation.user_calls, row.conversation.stopped) == (4, 2, True)
    asked = [request for request in folder.client.requests if request.target == "sim"]
    assert said(asked[1])[1:] == ["assistant: hello", "user: answer 1", "assistant: tea, please", "user: answer 2"]
    assert "buy tea" in (asked[0].system_prompt or "")
    assert not any("DONE" in line for request in folder.client.requests for line in said(request))
    assert summary.total.calls == 4


async def test_a_simulated_user_is_not_asked_after_the_last_turn(tmp_path: Path) -> None:
    talker = Talker()
    talker.user_says = ["1", "2", "3", "4"]
    folder = folder_of(tmp_path, [{"id": "shop", "user": USER}], talker)
    await folder.run()
    (row,) = folder.rows()
    assert row.conversation is not None
    assert (row.output, row.conversation.user_calls, row.conversation.stopped) == ("answer 4", 4, False)


@pytest.mark.parametrize(("says", "kept"), [([""], 0), (["DONE"], 0), (["go on", "  "], 1)])
async def test_a_simulated_user_that_says_nothing_is_an_error(tmp_path: Path, says: list[str], kept: int) -> None:
    talker = Talker()
    talker.user_says = says
    folder = folder_of(tmp_path, [{"id": "shop", "user": USER}], talker)
    await folder.run()
    (row,) = folder.rows()
    assert row.error is not None
    assert (row.status, row.error.code, len(row.turns())) == (RowStatus.ERROR, "user_failed", kept)


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


async def test_what_an_agent_did_before_a_failure_is_in_the_row(tmp_path: Path) -> None:
    fault = ProviderFailed("no", charged=True)
    large = "x" * (MAX_STEPS_BYTES - 1000)
    fault.steps = [AgentStep(operation="execute_tool", tool="pay", result=large)]
    talker = Talker()
    talker.failures[2] = [fault]
    folder = folder_of(tmp_path, [TURNS], talker)
    await folder.run()
    (row,) = folder.rows()
    assert row.error is not None
    assert [step.tool for step in row.error.steps or ()] == ["pay"]
    # Half of what a row may have of steps is left to the turns before.
    assert len(row.to_line()) < MAX_STEPS_BYTES
    assert row.error.steps_cut is not None
    (answer,) = case_page("talk", [row], CaseOrigin("eval.yaml", "runs")).answers
    assert answer.timeline is not None
    assert [step.title for step in answer.timeline.steps if step.kind == "tool"] == ["pay"]
    assert any("characters of texts" in note for note in answer.timeline.notes)
    assert row.without_content().error == row.error.with_fields(steps=None, steps_cut=None)
    (path,) = write_inspect_logs(tmp_path / "logs", read_report(folder.output))
    (sample,) = json.loads(path.read_text())["samples"]
    assert [call["function"] for message in sample["messages"] for call in message.get("tool_calls", ())] == ["pay"]


async def test_a_changed_turn_asks_the_conversation_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [TURNS], Talker())
    await folder.run()
    write_evaluation(
        tmp_path, [{**TURNS, "turns": ["one", "other"]}], [{"name": "any", "builtin": "regex", "pattern": "."}]
    )
    await folder.run()
    assert folder.plan is not None
    assert folder.plan.asked_again == 1
    assert [turn.question for turn in folder.rows_by_case()["talk"].turns()] == ["one", "other"]


@pytest.mark.parametrize("fault", [ConversationLost("gone", charged=False), WorkerLost("lost")])
async def test_a_conversation_that_is_lost_begins_again_and_its_turns_are_counted(tmp_path: Path, fault: Fault) -> None:
    talker = Talker()
    talker.failures[3] = [fault]
    folder = folder_of(tmp_path, [TURNS], talker, client=HoldingClient(talker, targets=("bot", "sim")))
    summary = await folder.run()
    (row,) = folder.rows()
    charged = int(fault.charged is not False)
    assert row.conversation is not None
    assert (row.status, row.calls) == (RowStatus.GRADED, 7 + charged)
    assert (row.conversation.attempts, row.conversation.lost_turns) == (2, 2)
    assert Counter(name for name, _ in talker.asked) == Counter({talker.asked[0][0]: 3, talker.asked[-1][0]: 5})
    assert (summary.total.lost_turns, summary.total.calls) == (2, 7 + charged)
    assert json.loads((folder.output / "run.json").read_text())["totals"]["lostTurns"] == 2
    report = read_report(folder.output)
    write_csv(tmp_path / "rows.csv", report)
    (cells,) = csv.DictReader((tmp_path / "rows.csv").read_text(encoding="utf-8-sig").splitlines())
    assert (cells["turns"], cells["lost_turns"]) == ("5", "2")
    assert "2 turns of conversations were lost" in render_markdown(report, "quintain run eval.yaml")
    (answer,) = case_page("talk", [row], CaseOrigin("eval.yaml", "runs")).answers
    assert "2 turns lost" in dict(answer.facts)["turns"]


@pytest.mark.parametrize(
    ("says", "failure", "is_ended"),
    [(["tea", "DONE"], None, True), (["1", "2", "3", "4"], None, False), (["tea", ""], None, True),
     (["tea", "milk"], ProviderFailed("no", charged=True), True)],
)  # fmt: skip
async def test_who_holds_a_conversation_is_told_that_no_turn_comes(
    tmp_path: Path, says: list[str], failure: Fault | None, is_ended: bool
) -> None:
    talker = Talker()
    talker.user_says, talker.failures = says, {} if failure is None else {2: [failure]}
    client = HoldingClient(talker, targets=("bot", "sim"))
    await folder_of(tmp_path, [{"id": "shop", "user": USER}], talker, client=client).run()
    # The last turn says by itself that it is the last.
    assert client.ended_conversations == ([talker.asked[0][0]] if is_ended else [])


async def test_what_the_budget_cuts_is_held_for_the_next_command(tmp_path: Path) -> None:
    talker = Talker()
    client = HoldingClient(talker, targets=("bot", "sim"), max_calls=2)
    await folder_of(tmp_path, [TURNS], talker, client=client).run()
    assert client.ended_conversations == []


async def test_a_conversation_is_begun_so_often_at_most(tmp_path: Path) -> None:
    talker = Talker()
    talker.failures[2] = [ConversationLost("gone", charged=False) for _ in range(9)]
    folder = folder_of(tmp_path, [TURNS], talker, client=HoldingClient(talker, targets=("bot", "sim")))
    await folder.run()
    (row,) = folder.rows()
    assert row.error is not None
    assert (row.status, row.error.code, len(talker.asked)) == (RowStatus.ERROR, "conversation_lost", 2 * MAX_ATTEMPTS)
    # A worker held it: the next command cannot go on with it.
    talker.failures.clear()
    await folder.run()
    assert [number for _, number in talker.asked[-5:]] == [1, 2, 3, 4, 5]


async def test_graders_get_the_whole_conversation(tmp_path: Path) -> None:
    program = write_script(
        tmp_path,
        "grade.py",
        "import json, sys\ncase = json.load(sys.stdin)\n"
        "print(json.dumps({'score': 1, 'reasoning': json.dumps([m['content'] for m in case['messages']])}))\n",
    )
    talker = Talker()
    shown: list[InvokeRequest] = []

    async def answer(request: InvokeRequest) -> str:
        if request.target == "sim":
            shown.append(request)
            return '{"pass": true}'
        return await talker(request)

    (tmp_path / "judge.md").write_text("Was it kind?")
    judge = {"name": "kind", "builtin": "llm-judge", "prompt": "judge.md", "judge_target": "sim"}
    graders: list[Json] = [{"name": "program", "command": program}, judge]
    write_evaluation(tmp_path, [{**TURNS, "turns": ["one", "two"]}], graders)
    folder = EvaluationFolder(tmp_path, FakeClient(answer, targets=("bot", "sim")))
    await folder.run()
    (row,) = folder.rows()
    assert row.status is RowStatus.GRADED, row.error
    assert json.loads(row.graders["program"].reason or "") == ["one", "answer 1", "two", "answer 2"]
    assert all(word in (shown[0].question or "") for word in ("one", "answer 1", "two", "answer 2"))
    # Graded again, from the row.
    (tmp_path / "judge.md").write_text("Was it polite?")
    await folder.run()
    assert len(talker.asked) == 2
    assert all(word in (shown[1].question or "") for word in ("one", "answer 1", "two", "answer 2"))
    assert folder.rows_by_case()["talk"].turns()[0].output == "answer 1"


async def test_a_small_budget_in_calls_buys_whole_conversations(tmp_path: Path) -> None:
    rows: list[Json] = [{"id": f"talk-{number}", "turns": ["one", "two", "three"]} for number in range(4)]
    talker = Talker()
    folder = folder_of(
        tmp_path, rows, talker, client=FakeClient(talker, targets=("bot", "sim"), max_calls=8), max_calls=8
    )
    summary = await folder.run()
    assert (summary.exit_code, summary.total.graded, summary.total.calls) == (ExitCode.BUDGET_SPENT, 2, 6)


class CallingClient(FakeClient):
    """A session whose target calls a tool where it should say "call"."""

    def _result(self, request: InvokeRequest, text: str) -> Result:
        if text != "call":
            return super()._result(request, text)
        called = OutputMessage(content="", tool_calls=[ToolCall(id="1", name="search", arguments="{}")])
        return super()._result(request, text).with_fields(output=[called])


@pytest.mark.parametrize(("answers", "asked"), [(["call"], 1), (["fine", "call"], 2)])
async def test_a_tool_call_that_nobody_answers_ends_a_conversation_by_name_before_its_last_turn(
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
    assert row.error is not None
    assert (row.status, row.error.code) == (RowStatus.ERROR, "tool_call_unanswered")
    assert "search" in row.error.error
    # The same command asks the conversation again, and the model may answer now.
    said_now += ["fine", "fine"]
    await folder.run()
    assert folder.rows_by_case()["talk"].status is RowStatus.GRADED
    assert said(folder.client.requests[-1]) == ["user: one", "assistant: fine", "user: two"]


async def test_an_answer_without_text_is_no_empty_message(tmp_path: Path) -> None:
    talker = Talker()
    talker.user_says = ["tea", "are you there?", "DONE"]

    async def answer(request: InvokeRequest) -> str:
        return await talker(request) if request.target == "sim" else " "

    folder = folder_of(
        tmp_path, [{"id": "shop", "user": USER}], talker, client=FakeClient(answer, targets=("bot", "sim"))
    )
    await folder.run()
    by_bot, by_sim = ([one for one in folder.client.requests if one.target == name] for name in ("bot", "sim"))
    assert said(by_bot[1]) == ["user: tea", "user: are you there?"]
    # A model that speaks must not see its own words last.
    assert [message.role for message in by_sim[1].messages or []] == ["user", "assistant", "user"]
    assert all(str(message.content).strip() for one in by_sim for message in one.messages or [])


async def test_a_changed_simulated_user_asks_its_conversations_again(tmp_path: Path) -> None:
    talker = Talker()
    talker.user_says = ["tea", "DONE"] * 3
    rows: list[Json] = [{"id": "shop", "user": USER}, {**TURNS, "id": "plain"}]
    folder = folder_of(tmp_path, rows, talker)
    await folder.run()
    await folder.run()
    assert folder.plan is not None
    assert (folder.plan.kept, folder.plan.asked_again) == (2, 0)
    before, client = folder.client.request_ids[:], folder.client
    client.fingerprints["sim"] = "another"
    await folder.run()
    assert (folder.plan.kept, folder.plan.asked_again) == (1, 1)
    assert list(folder.plan.asking_reasons) == ["simulated user sim changed"]
    assert not {*client.request_ids[len(before) :]} & {*before}
    assert len(client.request_ids) == len(before) + 3


async def test_a_simulated_user_that_changes_within_a_run_makes_no_row(tmp_path: Path) -> None:
    talker = Talker()
    talker.user_says = ["tea", "DONE"]
    folder = folder_of(tmp_path, [{"id": "shop", "user": USER}], talker)
    folder.client.answered_fingerprints["sim"] = "another"
    await folder.run()
    (row,) = folder.rows()
    assert row.error is not None
    assert (row.error.code, row.calls) == ("target_changed", 1)


async def test_an_export_has_every_turn(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, [{"id": "q", "question": "first", "turns": ["then"]}], Talker())
    await folder.run()
    (path,) = write_inspect_logs(tmp_path / "logs", read_report(folder.output))
    (sample,) = json.loads(path.read_text())["samples"]
    assert [(message["role"], message["content"]) for message in sample["messages"]] == [
        ("user", "first"), ("assistant", "answer 1"), ("user", "then"), ("assistant", "answer 2"),
    ]  # fmt: skip
    assert (sample["input"], sample["output"]["completion"]) == ("first", "answer 2")
    write_agentv_run(tmp_path / "agentv", read_report(folder.output))
    (shown,) = (tmp_path / "agentv").glob("**/input.md")
    assert re.findall(r"@\[(\w+)\]:\n(.*)", shown.read_text()) == [
        ("user", "first"), ("assistant", "answer 1"), ("user", "then"),
    ]  # fmt: skip


def test_rows_without_content_hold_nothing_that_was_said(tmp_path: Path) -> None:
    conversation = TrialConversation(Case(id="c", turns=["secret"]))
    result = Result(
        output=[], target="bot", call_count=1, max_calls=1, continuation=Continuation(state="secret session")
    )
    held = conversation.answered("secret", result, "id")
    row = Row.model_validate(
        {
            "caseId": "c", "target": "bot", "repeat": 1, "status": "error",
            "fingerprints": {"input": "i", "grading": "g"},
            "conversation": {"turns": [json.loads(held.turns[0].to_wire())]},
        }
    )  # fmt: skip
    assert b"secret" in row.to_line()
    assert b"secret" not in row.without_content().to_line()


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
        ({"turns": []}, "turns"),
        ({"turns": ["a", "  "]}, "turns"),
        ({"turns": "a"}, "turns"),
        ({"turns": ["a"], "user": USER}, "turns and user"),
        ({"user": {"target": "sim"}}, "goal"),
        ({"user": {"target": "sim", "goal": " "}}, "goal"),
        ({"user": {"goal": "g"}}, "target"),
        ({"user": {**USER, "max_turns": 0}}, "max_turns"),
        ({"user": {**USER, "max_turn": 3}}, "max_turn"),
        ({"user": {"name": "Ann"}}, "turns"),
    ],
)
def test_a_conversation_that_cannot_be_held_is_refused_by_name(tmp_path: Path, row: Json, problem: str) -> None:
    ((_, parsed),) = parse_jsonl([json.dumps({"id": "c", **row}).encode()])
    assert problem in str(require_question(parsed))


def test_a_user_that_is_data_stays_data(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "c", "question": "q", "user": "ann"}) + "\n")
    assert check_dataset(DatasetSpec(file="cases.jsonl"), CaseSource(path=path)).conversations is None


async def inspected(folder: Path, rows: list[Json], **settings: object) -> str:
    """The problems of an evaluation whose configuration is a hosted target, an echo and a simulated user."""
    targets = {"hosted": {"provider": "target"}, "echo": {"provider": "mock"}, "sim": {"provider": "mock"}}
    (folder / "quintain.yaml").write_text(json.dumps({"targets": targets}))
    path = write_evaluation(folder, rows, [{"name": "any", "builtin": "regex", "pattern": "."}], **settings)
    found = await inspect_evaluation(RunOptions(path=path, output=folder / "out"), read_settings({}))
    return "\n".join(found.problems)


async def test_turns_for_an_agent_that_takes_one_text_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text(
        "def once(text): return text\n\ndef chat(messages): return messages[-1]['content']\n"
    )
    targets = {name: {"provider": "agent", "agent": f"bot:{name}"} for name in ("once", "chat")}
    (tmp_path / "quintain.yaml").write_text(json.dumps({"targets": targets}))
    path = write_evaluation(
        tmp_path, [TURNS], [{"name": "any", "builtin": "regex", "pattern": "."}], targets=["once", "chat"]
    )
    found = await inspect_evaluation(RunOptions(path=path, output=tmp_path / "out"), read_settings({}))
    (problem,) = found.problems
    assert "target once takes one question" in problem


async def test_a_target_without_history_or_an_unknown_user_is_a_problem(tmp_path: Path) -> None:
    asked_once: Json = {"id": "one", "question": "q"}
    shop: Json = {"id": "shop", "user": USER}
    assert await inspected(tmp_path, [asked_once], targets=["hosted"]) == ""
    assert "target hosted takes one question" in await inspected(tmp_path, [asked_once, TURNS], targets=["hosted"])
    assert await inspected(tmp_path, [TURNS, shop], targets=["echo"]) == ""
    unknown = {**shop, "user": {**USER, "target": "smi"}}
    assert "user.target: unknown target 'smi'" in await inspected(tmp_path, [unknown], targets=["echo"])


async def test_a_prompt_in_place_of_the_question_is_a_problem_and_one_beside_it_is_none(tmp_path: Path) -> None:
    assert "turns or a user" in await inspected(tmp_path, [TURNS], targets=["echo"], prompts=["Say {{ id }}"])
    beside = [{"name": "brief", "system": "Be brief."}]
    assert await inspected(tmp_path, [TURNS], targets=["echo"], prompts=beside) == ""


async def test_the_estimate_counts_all_turns_and_what_a_user_may_say(tmp_path: Path) -> None:
    rows: list[Json] = [{"id": "one", "question": "q"}, TURNS, {"id": "shop", "user": USER}]
    await inspected(tmp_path, rows, targets=["echo"])
    report = await check_evaluation(RunOptions(path=tmp_path / "eval.yaml"), read_settings({}))
    assert report.problems == []
    assert report.estimate is not None
    assert (report.estimate.calls.answers, report.estimate.calls.most) == (1 + 5 + 8, 14)
    assert report.estimate.left_out == [SIMULATED_USER]
