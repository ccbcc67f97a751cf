"""What a run does while its calls wait for the quota of their target, and when it gives a target up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quintain.contracts.fleet import QuotaList, QuotaState
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.quota import FailureCause, TryFailure
from quintain.errors import Expired, Fault, ProviderError, ProviderFailed, TargetUnavailable, Throttled
from quintain_runner.engine import quota_watch
from quintain_runner.engine.quota_watch import QuotaWatch, wait_line
from quintain_runner.engine.run_settings import ErrorPolicy
from quintain_runner.graders import base as retry
from quintain_runner.report.summary import ExitCode, exit_line
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient, echo

NOW = datetime(2026, 11, 26, 2, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses, and a watch that looks often."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(quota_watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(quota_watch, "FRESH_SECONDS", 0.0)


def quota(**fields: object) -> QuotaState:
    """The quota of the target ``bot``."""
    return QuotaState(id="team", name="openai-team", targets=["bot"], limit=20).model_copy(update=fields)


FAILED = "could not be reached (http://x/v1, Connection refused)"
OUT = {"out_ms": 10, "out_targets": {"bot": 5000}}


def failing(cause: FailureCause | None, **fields: object) -> QuotaState:
    failure = TryFailure(words=FAILED, cause=cause)
    return quota(failures={"bot": failure}, out_targets={"bot": 5000}, **fields)


def prepared(folder: Path, client: FakeClient, count: int = 3) -> EvaluationFolder:
    write_evaluation(folder, cases(count), [EXACT])
    return EvaluationFolder(folder, client)


async def test_without_a_quota_the_metadata_service_is_asked_once(tmp_path: Path) -> None:
    async def slow(request: InvokeRequest) -> str:
        await asyncio.sleep(0.1)
        return request.question or ""

    client = FakeClient(slow)
    client.quotas = [quota(targets=["another"])]
    await prepared(tmp_path, client).run()
    assert client.quotas_read <= 2


@pytest.mark.parametrize("fault", [Throttled("slow down", retry_after_ms=1), Expired()])
async def test_what_waits_for_its_quota_is_asked_until_it_answers(tmp_path: Path, fault: Fault) -> None:
    left = 3 * (retry.MAX_RETRIES[Throttled] + 5)

    async def answer(request: InvokeRequest) -> str:
        nonlocal left
        left -= 1
        if left > 0:
            raise fault
        return await echo(request)

    client = FakeClient(answer)
    client.quotas = [quota(waiting=3, in_flight=1)]
    summary = await prepared(tmp_path, client).run()
    assert (summary.exit_code, summary.total.errors) == (ExitCode.PASSED, 0)


async def test_errors_of_an_outage_park_nobody(tmp_path: Path) -> None:
    client = FakeClient(echo)
    client.quotas = [quota()]

    async def answer(request: InvokeRequest) -> str:
        if len(client.requests) <= 30:
            client.quotas = [quota(**OUT)]
            raise ProviderFailed("HTTP 500", charged=True)
        client.quotas = [quota()]
        return await echo(request)

    client.answer = answer
    summary = await prepared(tmp_path, client, 100).run()
    assert summary.parked_targets == {}
    assert (summary.total.errors + summary.total.in_doubt, summary.total.passed) == (30, 70)


@pytest.mark.parametrize(
    ("fault", "state", "policy", "parked"),
    [
        (TargetUnavailable("no such model"), {}, {}, ["bot"]),
        # An outage is not waited out where the first error is to end the run.
        (ProviderFailed("HTTP 500", charged=True), OUT, {"fail_fast": True}, ["bot"]),
        # What expires without a call in the quota is an error, and no reason to park.
        (Expired(), {}, {}, []),
    ],
)
async def test_errors_without_an_outage_park_their_target_if_they_are_the_endpoints(
    tmp_path: Path, fault: Fault, state: dict[str, object], policy: dict[str, bool], parked: list[str]
) -> None:
    client = FakeClient(fault)
    client.quotas = [quota(**state)]
    summary = await prepared(tmp_path, client, 30).run(error_policy=ErrorPolicy(**policy))
    assert list(summary.parked_targets) == parked
    assert summary.total.errors + summary.total.in_doubt + summary.total.waiting == 30


async def test_a_provider_that_stays_away_is_given_up_and_the_same_command_asks_the_rest(tmp_path: Path) -> None:
    client = FakeClient()
    client.quotas = [quota()]
    fault = ProviderFailed("openai failed (HTTP 503)", charged=False)
    fault.provider_error = ProviderError(message="The engine is overloaded")

    async def answer(request: InvokeRequest) -> str:
        if request.eval_case_id == "case-0":
            client.quotas = [quota(out_ms=3_000, out_targets={"bot": 5000})]
            raise fault
        await asyncio.sleep(60)
        raise AssertionError

    client.answer = answer
    folder = prepared(tmp_path, client, 30)
    async with asyncio.timeout(30):
        summary = await folder.run(give_up_seconds=2.0)
    assert (summary.exit_code, summary.total.errors, summary.total.waiting) == (ExitCode.ERRORS, 1, 29)
    line = exit_line(summary, "quintain run eval.yaml")
    assert "The engine is overloaded" in line
    assert "--give-up-after" in line

    client.answer, client.quotas = echo, [quota()]
    summary = await folder.run()
    assert (summary.exit_code, summary.total.passed) == (ExitCode.PASSED, 30)


class Told:
    """What the metadata service says, and a clock."""

    def __init__(self, *quotas: QuotaState) -> None:
        self.quotas, self.now = quotas, 0.0
        self.give_up_seconds: float | None = 100.0

    async def read(self) -> QuotaList:
        return QuotaList(quotas=list(self.quotas), now=0)

    def watch(self, **calls: frozenset[str]) -> QuotaWatch:
        return QuotaWatch(self.read, calls, give_up_seconds=self.give_up_seconds, clock=lambda: self.now)


async def test_only_refusals_for_as_long_as_a_run_waits_are_given_up() -> None:
    told = Told(quota(paused_ms=1000, waiting=2))
    watch = told.watch(bot=frozenset({"bot"}))
    for told.now in (0.0, 60.0, 99.0):
        await watch.refresh()
        assert watch.to_give_up() == {}
    # One look between two pauses, while one call is tried, is no answer; two are.
    for told.now, state in ((99.5, quota()), (100.0, quota(paused_ms=1000))):
        told.quotas = (state,)
        await watch.refresh()
    assert watch.to_give_up()["bot"].code == "throttled"
    for told.now in (101.0, 102.0):
        told.quotas = (quota(),)
        await watch.refresh()
    assert watch.to_give_up() == {}


async def test_a_target_is_given_up_with_its_judge_and_not_with_its_neighbour() -> None:
    told = Told(quota(targets=["bot", "judge"], out_targets={"judge": 5000}))
    watch = told.watch(bot=frozenset({"bot"}), other=frozenset({"other", "judge"}))
    for told.now in (0.0, 100.0):
        await watch.refresh()
    assert list(watch.to_give_up()) == ["other"]
    # A refused key is given up at once.
    watch = Told(quota(refused=True)).watch(bot=frozenset({"bot"}))
    await watch.refresh()
    assert list(watch.to_give_up()) == ["bot"]


@pytest.mark.parametrize(
    ("cause", "option", "has_answered", "seconds"),
    [
        (FailureCause.WRONG_ADDRESS, None, False, 60.0),
        (FailureCause.NOT_TAKEN, None, False, 600.0),
        (None, None, False, 1800.0),
        (FailureCause.WRONG_ADDRESS, None, True, 1800.0),
        (FailureCause.NOT_TAKEN, None, True, 1800.0),
        (FailureCause.WRONG_ADDRESS, 7200.0, False, 7200.0),
        (FailureCause.NOT_TAKEN, 5.0, False, 5.0),
    ],
)
async def test_how_long_a_first_answer_is_waited_for_depends_on_the_reason(
    cause: FailureCause | None, option: float | None, has_answered: bool, seconds: float
) -> None:
    # It was out long before this run began.
    told = Told(failing(cause, out_ms=9_000_000))
    told.give_up_seconds = option
    watch = told.watch(bot=frozenset({"bot"}))
    if has_answered:
        watch.note_answer("bot")
    for told.now in (0.0, seconds - 0.1):
        await watch.refresh()
        assert watch.to_give_up() == {}
    told.now = seconds
    await watch.refresh()
    parked = watch.to_give_up()["bot"]
    assert (parked.code, "http://x/v1, Connection refused" in parked.error) == ("provider_error", True)
    assert parked.setting is not None


async def test_a_deadline_allows_the_wait_only_where_there_is_a_quota() -> None:
    watch = Told(quota()).watch(bot=frozenset({"bot", "judge"}))
    await watch.refresh()
    assert watch.line_seconds("bot") > 0
    assert watch.line_seconds("judge") == 0


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (quota(), None),
        (quota(waiting=4, estimated_seconds=0.5), None),
        (quota(waiting=412, requests_per_minute=600.0, estimated_seconds=41.2), ["412", "600 requests", "41.2 s"]),
        (quota(waiting=40, estimated_seconds=300.0), ["40", "20 in flight", "5 min"]),
        (quota(out_ms=960_000, out_targets={"bot": 40_000}), ["since 02:14", "83", "in 40 s", "--give-up-after 2h"]),
        (quota(targets=["bot", "other"], out_targets={"bot": 40_000}), ["bot of openai-team"]),
        (failing(None, out_ms=960_000), ["since 02:14", "in 5 s", FAILED]),
    ],
)
def test_a_line_says_what_calls_wait_for(state: QuotaState, told: list[str] | None) -> None:
    line = wait_line(state, trials=83, give_up_seconds=7200.0, now=NOW)
    assert (line is None) == (told is None)
    assert [words for words in told or () if words not in line] == []
