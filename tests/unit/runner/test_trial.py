"""One trial: what becomes of it, as one row, and how the calls of its graders are made."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quintain.contracts.invoke import InvokeRequest, Result, TokenUsage
from quintain.contracts.session import Info
from quintain.errors import (
    BudgetUnavailable,
    Cancelled,
    Expired,
    Fault,
    GatewayUnavailable,
    InternalFault,
    Overloaded,
    ProviderFailed,
    QuintainError,
    Rejected,
    ReplyTooLarge,
    Throttled,
    TimedOut,
    UnknownTarget,
    WorkerLost,
)
from quintain.graders import Case
from quintain.observe.semconv import SpanStart
from quintain.observe.spans import span
from quintain.programs.agent_urls import session_variables, with_proxy_bypass
from quintain_runner.engine.trial import run_trial
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders import base as retry
from quintain_runner.graders.base import MAX_RETRIES, call_with_retry
from quintain_runner.graders.factory import build_own
from quintain_runner.graders.input import LONG_ANSWER_CHARACTERS
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.results.row import RowStatus
from quintain_runner.spec.asking_graders import JudgeGrader
from quintain_runner.spec.builtin_graders import ExactGrader
from support.fake_client import FakeClient
from support.grading_context import grading_context, script_grader, trial_of

TRIAL = trial_of(Case(id="c1", question="Paris", expected="Paris"))
SAME = build_own(ExactGrader(name="same", builtin="exact"))


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked again is asked again at once."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)


PASSES = "print('{\"score\": 1}')"


class SpendingClient(FakeClient):
    """Every grader session has spent this much when its counters are asked for."""

    calls_of_a_grader = 3

    async def read_session_info(self, token: str) -> Info:
        self.spend(token, self.calls_of_a_grader)
        return await super().read_session_info(token)


async def test_a_call_lasts_as_long_as_its_target_may_take_and_600_s_at_least() -> None:
    for timeouts, expected in (({}, 600), ({"bot": 30}, 600), ({"bot": 7200, "other": 9000}, 7200)):
        client = FakeClient()
        await run_trial(TRIAL, replace(grading_context(client, SAME), timeouts=timeouts))
        assert client.deadlines == {"bot": {expected}}


async def test_each_execution_of_a_grader_gets_a_session_that_only_narrows_and_is_counted(tmp_path: Path) -> None:
    client = SpendingClient(max_calls=20)
    own = script_grader(tmp_path, PASSES, judge_target="own-judge")
    other = script_grader(tmp_path, PASSES, name="other", max_calls=7)
    row = (await run_trial(TRIAL, grading_context(client, own, other))).row
    assert (row.key, row.status, row.output, row.score) == (("c1", "bot", 1, None), RowStatus.GRADED, "Paris", 1.0)
    assert [grader.calls for grader in row.graders.values()] == [3, 3]
    assert (row.calls, row.token_usage, row.duration_ms) == (7, TokenUsage(input=16, output=2), 5.0)
    first, second = (child.request for child in client.children.values())
    assert (first.default_target, first.max_calls, first.expires_in_seconds) == ("own-judge", 20, 90)
    assert (second.default_target, second.max_calls, second.label) == ("configured-judge", 7, "eval/c1/other")


async def test_a_failing_grader_is_an_error_and_never_a_score_of_0(tmp_path: Path) -> None:
    broken = script_grader(tmp_path, "print('{\"score\": 7}')")
    later = script_grader(tmp_path, "raise SystemExit('never run')", name="later")
    row = (await run_trial(TRIAL, grading_context(SpendingClient(), SAME, broken, later))).row
    assert (row.status, row.score, row.output) == (RowStatus.ERROR, None, "Paris")
    assert (row.error.code, row.error.error) == ("grader_failed", f"grader judge: {row.graders['judge'].error}")
    assert (row.graders["judge"].score, row.graders["judge"].calls) == (None, 3)
    assert row.calls == 4
    assert list(row.graders) == ["same", "judge"]


@pytest.mark.parametrize(
    ("fault", "status", "calls"),
    [
        (UnknownTarget("Unknown target 'bot'"), RowStatus.ERROR, 0),
        (ProviderFailed("it failed"), RowStatus.ERROR, 0),
        (ProviderFailed("the connection was lost", charged=True), RowStatus.IN_DOUBT, 1),
        (Cancelled("it may have been billed", charged=True), RowStatus.IN_DOUBT, 1),
        (Rejected("too long"), RowStatus.ERROR, 1),
        (ReplyTooLarge("too large"), RowStatus.ERROR, 1),
        (Expired("in the queue"), RowStatus.ERROR, 0),
        (Expired("no answer", charged=True), RowStatus.IN_DOUBT, 1),
        (TimedOut("too slow"), RowStatus.IN_DOUBT, 1),
        (WorkerLost("three died"), RowStatus.IN_DOUBT, 1),
        (InternalFault("an answer that cannot be read", charge_unknown=True), RowStatus.IN_DOUBT, 1),
        (InternalFault("a defect", charged=True), RowStatus.IN_DOUBT, 1),
    ],
)
async def test_a_fault_is_an_error_or_in_doubt_with_its_code(fault: Fault, status: RowStatus, calls: int) -> None:
    row = (await run_trial(TRIAL, grading_context(FakeClient(fault), SAME))).row
    assert (row.status, row.calls, row.output, row.score) == (status, calls, None, None)
    assert (row.error.code, row.error.error) == (fault.code, fault.message)


@pytest.mark.parametrize(
    ("source", "counts", "status"),
    [
        ("raise SystemExit('its judge is gone')", {"in_doubt": 1}, RowStatus.IN_DOUBT),
        ("raise SystemExit('it did not wait')", {"running": 1}, RowStatus.IN_DOUBT),
        ("raise SystemExit('its judge failed')", {"charged_faults": 1}, RowStatus.IN_DOUBT),
        ("raise SystemExit('a bug')", {}, RowStatus.ERROR),
        ("print('{\"score\": 1}')", {"in_doubt": 1}, RowStatus.GRADED),
    ],
)
async def test_a_grader_that_fails_with_a_call_in_doubt_leaves_a_row_in_doubt(
    tmp_path: Path, source: str, counts: dict[str, int], status: RowStatus
) -> None:
    class Doubtful(SpendingClient):
        async def read_session_info(self, token: str) -> Info:
            info: Info = await super().read_session_info(token)
            return info.model_copy(update=counts)

    row = (await run_trial(TRIAL, grading_context(Doubtful(), script_grader(tmp_path, source)))).row
    assert (row.status, row.output, row.calls) == (status, "Paris", 4)


async def test_a_reservation_that_fails_is_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_RETRIES", {})

    class Unreadable(FakeClient):
        async def reserve_ids(self, request_ids: Sequence[str], *, deadline_seconds: float = 600.0) -> int:
            raise BudgetUnavailable("no ledger")

    judge = JudgeGrader(name="judge", builtin="llm-judge", prompt="p.md")
    context = grading_context(Unreadable(), JudgeGraderRunner(judge, "Is it right?"))
    row = (await run_trial(TRIAL, context, TrialBudget(context, is_scarce=True))).row
    assert (row.status, row.calls) == (RowStatus.ERROR, 0)


async def test_a_grader_that_makes_no_calls_does_not_fail_for_a_spent_budget(tmp_path: Path) -> None:
    without_session = replace(script_grader(tmp_path, "raise SystemExit(3)"), needs_session=False)
    without_expected = trial_of(Case(id="c1", question="Paris"))
    for grader, trial in ((without_session, TRIAL), (SAME, without_expected)):
        outcome = await run_trial(trial, grading_context(FakeClient(max_calls=1), grader))
        assert (outcome.row.error.code, outcome.budget_spent) == ("grader_failed", False)
    failed = script_grader(tmp_path, "raise SystemExit('refused')")
    outcome = await run_trial(TRIAL, grading_context(FakeClient(max_calls=1), failed))
    assert (outcome.row.error.code, outcome.budget_spent) == ("budget_exhausted", True)
    assert "The run's budget is spent (limit: 1): grader judge: It crashed" in outcome.row.error.error


async def test_without_the_ledger_nobody_knows_what_a_grader_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "MAX_RETRIES", {})

    class Unreadable(FakeClient):
        async def read_session_info(self, token: str) -> Info:
            raise BudgetUnavailable("no ledger")

    row = (await run_trial(TRIAL, grading_context(Unreadable(), script_grader(tmp_path, PASSES)))).row
    assert (row.status, row.output, row.error.code) == (RowStatus.IN_DOUBT, "Paris", "budget_unavailable")

    class NoBudget(FakeClient):
        async def get_info(self, *, usage: bool = False) -> Info:
            raise BudgetUnavailable("no ledger")

    bug = script_grader(tmp_path, "raise SystemExit('bug')")
    outcome = await run_trial(TRIAL, grading_context(NoBudget(), bug))
    assert (outcome.row.error.code, outcome.budget_spent) == ("grader_failed", False), "it keeps its own sentence"


TELLS_WHAT_IT_READS = """
import json, os, sys
given = json.load(sys.stdin)
path = given.get("output_path")
said = {
    "output": given["output"] if path is None else json.load(open(path)) == given["output"],
    "path": path,
    "end": given["end_time"],
    "token": os.environ["AGENTV_TARGET_PROXY_TOKEN"],
    "trace": os.environ.get("TRACEPARENT"),
}
print(json.dumps({"pass": True, "reason": json.dumps(said)}))
"""


async def long_answer(request: InvokeRequest) -> str:
    return "ä" * LONG_ANSWER_CHARACTERS


async def read_by_a_grader(folder: Path, client: FakeClient) -> dict[str, object]:
    outcome = await run_trial(TRIAL, grading_context(client, script_grader(folder, TELLS_WHAT_IT_READS)))
    return json.loads(outcome.row.graders["judge"].reason)


async def test_a_program_finds_the_answer_its_time_its_session_and_the_trace_it_belongs_to(tmp_path: Path) -> None:
    began = datetime.now(UTC)
    said = await read_by_a_grader(tmp_path, FakeClient())
    assert began - timedelta(milliseconds=1) <= datetime.fromisoformat(said.pop("end")) <= datetime.now(UTC)
    assert said == {"output": "Paris", "path": None, "token": "token-1", "trace": None}

    class Ledger(FakeClient):
        async def send(self, request: InvokeRequest, **options: object) -> Result:
            return (await super().send(request, **options)).model_copy(update={"replayed": True})

    theirs = f"00-{'ab' * 16}-{'cd' * 8}-01"
    with span(SpanStart("around"), parent=theirs):
        said = await read_by_a_grader(tmp_path, Ledger(long_answer))
    # It came before, at a time that nobody knows; a long one is in a file as well, while the grader runs.
    assert (said["end"], said["trace"], said["output"]) == (None, theirs, True)
    assert not Path(said["path"]).parent.exists()


async def test_a_file_that_cannot_be_written_is_its_rows_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    grader = script_grader(tmp_path, TELLS_WHAT_IT_READS)
    outcome = await run_trial(TRIAL, grading_context(FakeClient(long_answer), grader))
    assert "grader judge: A file for it cannot be written in" in outcome.row.error.error


# A grader's calls: how its clients find its session, and what is asked again, how often, and what is not.


class FailingCall:
    """Fails so many times, then answers."""

    def __init__(self, error: QuintainError, *, failures: int) -> None:
        self.error, self.failures_left, self.call_count = error, failures, 0

    async def __call__(self) -> str:
        self.call_count += 1
        if self.failures_left:
            self.failures_left -= 1
            raise self.error
        return "answered"


@pytest.mark.parametrize(
    "error",
    [Overloaded(), BudgetUnavailable(), Throttled(), Expired(), GatewayUnavailable(), Expired(charge_unknown=True)],
)
async def test_what_the_fleet_could_not_take_is_asked_again_so_often_at_most(error: QuintainError) -> None:
    heard: list[QuintainError] = []
    asked = FailingCall(error, failures=3)
    assert await call_with_retry(asked, heard.append) == "answered"
    assert (asked.call_count, heard) == (4, [error] * 3)
    asked = FailingCall(error, failures=100)
    with pytest.raises(type(error)):
        await call_with_retry(asked)
    assert asked.call_count == MAX_RETRIES[type(error)] + 1


@pytest.mark.parametrize("error", [InternalFault(), ProviderFailed(), Expired(charged=True), Fault()])
async def test_what_was_charged_or_fails_by_itself_is_not(error: Fault) -> None:
    asked = FailingCall(error, failures=1)
    with pytest.raises(type(error)):
        await call_with_retry(asked)
    assert asked.call_count == 1


def test_every_client_finds_the_session() -> None:
    assert session_variables("http://127.0.0.1:4000/", "token") == {
        "QUINTAIN_SESSION_TOKEN": "token",
        "QUINTAIN_GATEWAY_URL": "http://127.0.0.1:4000",
        "AGENTV_TARGET_PROXY_URL": "http://127.0.0.1:4000",
        "AGENTV_TARGET_PROXY_TOKEN": "token",
        "AGENTV_PROVIDER_PROXY_URL": "http://127.0.0.1:4000",
        "AGENTV_PROVIDER_PROXY_TOKEN": "token",
        "OPENAI_BASE_URL": "http://127.0.0.1:4000/v1",
        "OPENAI_API_KEY": "token",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:4000",
        "ANTHROPIC_API_KEY": "token",
    }


def test_no_proxy_covers_the_session_urls_where_a_proxy_is_configured() -> None:
    doors = "http://127.0.0.1:4000"
    assert with_proxy_bypass({"PATH": "/bin"}, doors) == {"PATH": "/bin"}
    env = with_proxy_bypass({"HTTP_PROXY": "http://proxy", "no_proxy": "example.org"}, doors)
    assert env["no_proxy"] == "example.org,127.0.0.1"
    assert env["NO_PROXY"] == "127.0.0.1"
