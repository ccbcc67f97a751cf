"""One trial: what becomes of it, as one row."""

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
    BrokerUnavailable,
    BudgetUnavailable,
    Cancelled,
    Expired,
    Fault,
    InternalFault,
    ProviderFailed,
    Rejected,
    ReplyTooLarge,
    TimedOut,
    UnknownTarget,
    WorkerLost,
)
from quintain.graders import Case
from quintain.observe.semconv import SpanStart
from quintain.observe.spans import span
from quintain_runner.engine.trial import run_trial
from quintain_runner.engine.trial_budget import TrialBudget
from quintain_runner.graders import base as retry
from quintain_runner.graders.base import GraderRunner, GradingContext
from quintain_runner.graders.factory import build_own
from quintain_runner.graders.input import LONG_ANSWER_CHARACTERS
from quintain_runner.graders.judge import JudgeGraderRunner
from quintain_runner.results.row import RowStatus
from quintain_runner.spec.asking_graders import JudgeGrader
from quintain_runner.spec.builtin_graders import ExactGrader
from support.fake_client import Answer, FakeClient
from support.grading_context import grading_context as bench_of
from support.grading_context import script_grader, trial_of

TRIAL = trial_of(Case(id="c1", question="Paris", expected="Paris"))
SAME = build_own(ExactGrader(name="same", builtin="exact"))


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked again is asked again at once."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)


def grading_context_of(client: FakeClient, *graders: GraderRunner) -> GradingContext:
    return bench_of(client, *(graders or (SAME,)))


def failing_with(fault: Exception) -> Answer:
    async def answer(request: InvokeRequest) -> str:
        raise fault

    return answer


class SpendingClient(FakeClient):
    """Every grader session has spent this much when its counters are asked for."""

    calls_of_a_grader = 3

    async def read_session_info(self, token: str) -> object:  # type: ignore[override]
        self.spend(token, self.calls_of_a_grader)
        return await super().read_session_info(token)


async def test_an_answer_is_graded_into_a_row(tmp_path: Path) -> None:
    outcome = await run_trial(TRIAL, grading_context_of(FakeClient()))
    row = outcome.row
    assert row is not None
    assert (row.key, row.status, row.output, row.score) == (("c1", "bot", 1, None), RowStatus.GRADED, "Paris", 1.0)
    assert (row.calls, row.token_usage, row.duration_ms) == (1, TokenUsage(input=10, output=2), 5.0)
    assert row.graders["same"].passed
    assert not outcome.budget_spent


@pytest.mark.parametrize(
    ("timeouts", "expected"), [({}, 600), ({"bot": 30}, 600), ({"bot": 7200, "other": 9000}, 7200)]
)
async def test_a_call_lasts_as_long_as_its_target_may_take_and_600_s_at_least(
    timeouts: dict[str, float], expected: float
) -> None:
    client = FakeClient()
    await run_trial(TRIAL, replace(grading_context_of(client), timeouts=timeouts))
    assert client.deadlines == {"bot": {expected}}


async def test_the_score_is_the_mean_of_the_graders(tmp_path: Path) -> None:
    half = script_grader(tmp_path, 'print(\'{"score": 0.5, "reason": "half"}\')')
    outcome = await run_trial(TRIAL, grading_context_of(FakeClient(), SAME, half))
    assert outcome.row is not None
    assert outcome.row.score == 0.75
    assert outcome.row.graders["judge"].reason == "half"


async def test_each_execution_of_a_grader_gets_a_session_that_only_narrows(tmp_path: Path) -> None:
    client = FakeClient(max_calls=20)
    own = script_grader(tmp_path, "print('{\"score\": 1}')", judge_target="own-judge")
    other = script_grader(tmp_path, "print('{\"score\": 1}')", name="other", max_calls=7)
    await run_trial(TRIAL, grading_context_of(client, own, other))
    first, second = (child.request for child in client.children.values())
    assert (first.default_target, first.max_calls, first.expires_in_seconds) == ("own-judge", 20, 90)
    assert (second.default_target, second.max_calls, second.label) == ("configured-judge", 7, "eval/c1/other")


async def test_a_grader_finds_its_session_and_reads_the_case(tmp_path: Path) -> None:
    source = """
import json, os, sys
case = json.load(sys.stdin)
print(json.dumps({"pass": True, "reason": os.environ["AGENTV_TARGET_PROXY_TOKEN"] + " " + case["output"]}))
"""
    outcome = await run_trial(TRIAL, grading_context_of(FakeClient(), script_grader(tmp_path, source)))
    assert outcome.row is not None
    assert outcome.row.graders["judge"].reason == "token-1 Paris"


async def test_what_the_graders_spend_is_counted(tmp_path: Path) -> None:
    one, two = (script_grader(tmp_path, "print('{\"score\": 1}')", name=name) for name in ("one", "two"))
    outcome = await run_trial(TRIAL, grading_context_of(SpendingClient(), one, two))
    assert outcome.row is not None
    assert [grader.calls for grader in outcome.row.graders.values()] == [3, 3]
    assert (outcome.row.calls, outcome.row.token_usage) == (7, TokenUsage(input=16, output=2))


async def test_a_failing_grader_is_an_error_and_never_a_score_of_0(tmp_path: Path) -> None:
    source, sentence = "print('{\"score\": 7}')", "grader judge: Its score is not from 0 to 1"
    later = script_grader(tmp_path, "raise SystemExit('never run')", name="later")
    outcome = await run_trial(TRIAL, grading_context_of(SpendingClient(), SAME, script_grader(tmp_path, source), later))
    row = outcome.row
    assert row is not None
    assert (row.status, row.score, row.output) == (RowStatus.ERROR, None, "Paris")
    assert row.error is not None
    assert row.error.code == "grader_failed"
    assert row.error.error.startswith(sentence)
    assert sentence.removeprefix("grader judge: ") in (row.graders["judge"].error or "")
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
async def test_a_fault_is_an_error_or_in_doubt_with_its_code(
    tmp_path: Path, fault: Fault, status: RowStatus, calls: int
) -> None:
    outcome = await run_trial(TRIAL, grading_context_of(FakeClient(failing_with(fault))))
    row = outcome.row
    assert row is not None
    assert (row.status, row.calls, row.output, row.score) == (status, calls, None, None)
    assert row.error is not None
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
        async def read_session_info(self, token: str) -> Info:  # type: ignore[override]
            info: Info = await super().read_session_info(token)  # type: ignore[assignment]
            return info.model_copy(update=counts)

    row = (await run_trial(TRIAL, grading_context_of(Doubtful(), script_grader(tmp_path, source)))).row
    assert row is not None
    assert (row.status, row.output, row.calls) == (status, "Paris", 4)


async def test_a_reservation_that_fails_is_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_RETRIES", {})

    class Unreadable(FakeClient):
        async def reserve_ids(self, request_ids: Sequence[str], *, deadline_seconds: float = 600.0) -> int:
            raise BudgetUnavailable("no ledger")

    judge = JudgeGrader(name="judge", builtin="llm-judge", prompt="p.md")
    context = grading_context_of(Unreadable(), JudgeGraderRunner(judge, "Is it right?"))
    row = (await run_trial(TRIAL, context, TrialBudget(context, is_scarce=True))).row
    assert row is not None
    assert (row.status, row.calls) == (RowStatus.ERROR, 0)


async def test_a_spent_budget_leaves_no_row_of_a_case_that_was_not_asked(tmp_path: Path) -> None:
    outcome = await run_trial(TRIAL, grading_context_of(FakeClient(max_calls=0)))
    assert (outcome.row, outcome.budget_spent) == (None, True)


async def test_a_grader_that_makes_no_calls_does_not_fail_for_a_spent_budget(tmp_path: Path) -> None:
    without_session = replace(script_grader(tmp_path, "raise SystemExit(3)"), needs_session=False)
    without_expected = trial_of(Case(id="c1", question="Paris"))
    for grader, trial in ((without_session, TRIAL), (SAME, without_expected)):
        outcome = await run_trial(trial, grading_context_of(FakeClient(max_calls=1), grader))
        assert outcome.row is not None
        assert outcome.row.error is not None
        assert (outcome.row.error.code, outcome.budget_spent) == ("grader_failed", False)


async def test_a_grader_that_fails_when_the_budget_is_spent_is_told_as_that(tmp_path: Path) -> None:
    client = FakeClient(max_calls=1)
    outcome = await run_trial(TRIAL, grading_context_of(client, script_grader(tmp_path, "raise SystemExit('refused')")))
    assert outcome.budget_spent
    assert outcome.row is not None
    assert outcome.row.error is not None
    assert outcome.row.error.code == "budget_exhausted"
    assert "The run's budget is spent (limit: 1): grader judge: It crashed" in outcome.row.error.error


async def test_a_grader_that_fails_while_the_ledger_cannot_be_read_keeps_its_own_sentence(tmp_path: Path) -> None:
    class Unreadable(FakeClient):
        async def get_info(self) -> object:  # type: ignore[override]
            raise BudgetUnavailable("no ledger")

    outcome = await run_trial(
        TRIAL, grading_context_of(Unreadable(), script_grader(tmp_path, "raise SystemExit('bug')"))
    )
    assert outcome.row is not None
    assert outcome.row.error is not None
    assert (outcome.row.error.code, outcome.budget_spent) == ("grader_failed", False)


async def test_a_grader_whose_counters_cannot_be_read_has_spent_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "MAX_RETRIES", {})

    class Unreadable(FakeClient):
        async def read_session_info(self, token: str) -> object:  # type: ignore[override]
            raise BudgetUnavailable("no ledger")

    outcome = await run_trial(
        TRIAL, grading_context_of(Unreadable(), script_grader(tmp_path, "print('{\"score\": 1}')"))
    )
    assert outcome.row is not None
    assert (outcome.row.status, outcome.row.output) == (RowStatus.IN_DOUBT, "Paris")
    assert outcome.row.error is not None
    assert outcome.row.error.code == "budget_unavailable"


async def test_a_broker_that_is_gone_ends_the_run_not_the_case(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable):
        await run_trial(TRIAL, grading_context_of(FakeClient(failing_with(BrokerUnavailable("gone")))))


READS_THE_FILE = """
import json, os, sys
given = json.load(sys.stdin)
path = given.get("output_path")
whole = path is not None and json.load(open(path)) == given["output"]
print(json.dumps({"pass": True, "reason": json.dumps({"path": path, "whole": whole, "end": given["end_time"]})}))
"""


FINDS_ITS_TRACE = """
import json, os
print(json.dumps({"pass": True, "reason": os.environ.get("TRACEPARENT", "none")}))
"""

THEIRS = f"00-{'ab' * 16}-{'cd' * 8}-01"


async def test_a_grader_finds_the_trace_it_belongs_to_where_there_is_one(tmp_path: Path) -> None:
    async def found() -> str | None:
        outcome = await run_trial(TRIAL, grading_context_of(FakeClient(), script_grader(tmp_path, FINDS_ITS_TRACE)))
        assert outcome.row is not None
        return outcome.row.graders["judge"].reason

    assert await found() == "none"
    with span(SpanStart("around"), parent=THEIRS):
        assert await found() == THEIRS


async def long_answer(request: InvokeRequest) -> str:
    return "ä" * LONG_ANSWER_CHARACTERS


async def grader_input_of(tmp_path: Path, client: FakeClient) -> dict[str, object]:
    outcome = await run_trial(TRIAL, grading_context_of(client, script_grader(tmp_path, READS_THE_FILE)))
    assert outcome.row is not None
    said: dict[str, object] = json.loads(outcome.row.graders["judge"].reason or "")
    return said


async def test_a_long_answer_is_in_a_file_while_the_grader_runs(tmp_path: Path) -> None:
    assert (await grader_input_of(tmp_path, FakeClient()))["path"] is None
    said = await grader_input_of(tmp_path, FakeClient(long_answer))
    assert said["whole"]
    assert not Path(str(said["path"])).parent.exists()


async def test_a_file_that_cannot_be_written_is_that_rows_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    outcome = await run_trial(
        TRIAL, grading_context_of(FakeClient(long_answer), script_grader(tmp_path, READS_THE_FILE))
    )
    assert outcome.row is not None
    assert outcome.row.error is not None
    assert "grader judge: A file for it cannot be written in" in outcome.row.error.error


async def test_a_grader_is_told_when_the_answer_came_unless_it_came_before(tmp_path: Path) -> None:
    began = datetime.now(UTC)
    end = datetime.fromisoformat(str((await grader_input_of(tmp_path, FakeClient()))["end"]))
    assert began - timedelta(milliseconds=1) <= end <= datetime.now(UTC)

    class Ledger(FakeClient):
        async def send(
            self, request: InvokeRequest, *, request_id: str | None = None, deadline_seconds: float = 600.0
        ) -> Result:
            fresh = await super().send(request, request_id=request_id, deadline_seconds=deadline_seconds)
            return fresh.model_copy(update={"replayed": True})

    assert (await grader_input_of(tmp_path, Ledger()))["end"] is None
