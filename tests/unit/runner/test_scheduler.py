"""When a trial begins: a target that seems dead is parked, and one that may have changed is tried first."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import FAULTS, Fault, ProviderFailed, Rejected, TargetUnavailable, TimedOut
from quintain_runner.engine.run_settings import ErrorPolicy
from quintain_runner.engine.scheduler import ErrorLimit, StartGate
from quintain_runner.report.progress_display import Lines
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode
from quintain_runner.results.row import RowStatus
from support.evaluations import EXACT, JUDGED, EvaluationFolder, cases, write_evaluation
from support.fake_client import FakeClient, echo

REFUSED = "openai refused the credentials, the model or the quota (ModelHTTPError, HTTP 401)"

#: How a trial's call of its target ended, a character each: answer, provider error, refused request, timeout;
#: c is an answer of another configuration.
ENDINGS: dict[str, Fault | None] = {
    ".": None,
    "E": ProviderFailed("HTTP 500", charged=True),
    "r": Rejected(),
    "t": TimedOut(),
}


def parked_at(endings: str, policy: ErrorPolicy) -> int | None:
    """After how many finished trials the target is parked; None where it is not."""
    limit = ErrorLimit(policy)
    for number, ending in enumerate(endings, start=1):
        limit.record("bot", ENDINGS.get(ending), changed="another configuration" if ending == "c" else None)
        if not limit.may_begin("bot"):
            return number
    return None


@pytest.mark.parametrize(
    ("endings", "max_errors", "parked"),
    [
        *(("E" * 19, 20, None), ("ccc", 20, 3), ("cc", 2, 2), ("cc.cc.", 20, None), ("ctcc", 20, 4)),
        *(("c" * 60, 0, None), ("E" * 20, 20, 20)),
        ("E" * 19 + "." + "E" * 19, 20, None),
        ("E" * 19 + "r" + "E" * 19, 20, None),
        *(("E" * 19 + "t" + "E", 20, 21), ("E." * 24, 20, None), ("E." * 25, 20, 50), ("....E" * 10, 20, 50)),
        *(("." * 10 + "....E" * 8, 20, None), ("." * 41 + "E" * 9, 20, None), ("." * 41 + "E" * 12, 20, 52)),
        *(("t" * 500, 20, None), ("r" * 500, 20, None), ("EE", 1, 1), (".EE.EEE", 3, 7), ("E" * 49, 1000, None)),
        *(("E" * 50, 1000, 50), (".....E" * 20, 20, None), ("...E" * 20, 20, 50), ("E" * 500, 0, None)),
    ],
)
def test_a_target_is_parked_by_errors_in_a_row_or_their_share(
    endings: str, max_errors: int, parked: int | None
) -> None:
    assert parked_at(endings, ErrorPolicy(max_errors=max_errors)) == parked


@pytest.mark.parametrize("code", FAULTS)
def test_only_credential_connection_and_server_errors_count(code: str) -> None:
    limit = ErrorLimit(ErrorPolicy(max_errors=1))
    limit.record("bot", FAULTS[code]())
    assert limit.may_begin("bot") == (code not in {"target_unavailable", "provider_error"})


@pytest.mark.parametrize("code", FAULTS)
def test_only_what_the_endpoint_answered_starts_the_count_again(code: str) -> None:
    limit = ErrorLimit(ErrorPolicy(max_errors=2))
    for fault in (TargetUnavailable(), FAULTS[code](), TargetUnavailable()):
        limit.record("bot", fault)
    assert limit.may_begin("bot") == (code in {"rejected", "reply_too_large"})


@pytest.mark.parametrize("max_errors", [0, 20])
def test_fail_fast_stops_every_target_at_the_first_error(max_errors: int) -> None:
    limit = ErrorLimit(ErrorPolicy(max_errors=max_errors, fail_fast=True))
    limit.record("bot", Rejected())
    assert limit.may_begin("bot")
    limit.record("bot", TargetUnavailable(REFUSED))
    assert (limit.may_begin("bot"), limit.may_begin("other")) == (False, False)
    assert limit.parked_targets["bot"].reason == "its first error, with --fail-fast"


def refusing(*targets: str) -> FakeClient:
    """A session in which these targets refuse every call."""

    async def answer(request: InvokeRequest) -> str:
        await asyncio.sleep(0)
        if request.target in targets:
            raise TargetUnavailable(REFUSED)
        return request.question or ""

    return FakeClient(answer, targets=("bot", "other"))


def prepared(folder: Path, count: int, client: FakeClient, *targets: str) -> EvaluationFolder:
    write_evaluation(folder, cases(count), [EXACT])
    return EvaluationFolder(folder, client, targets=targets or ("bot",))


async def test_a_dead_endpoint_is_asked_no_further_and_the_same_command_asks_the_rest(tmp_path: Path) -> None:
    folder = prepared(tmp_path, 100, refusing("bot"), "bot", "other")
    screen = io.StringIO()
    folder.progress = Lines(Console(file=screen, width=200))
    parked = await folder.run()
    asked = sum(request.target == "bot" for request in folder.client.requests)
    assert 20 <= asked <= 20 + folder.concurrency
    assert (parked.exit_code, parked.total.errors, parked.total.waiting) == (ExitCode.ERRORS, asked, 100 - asked)
    assert (list(parked.parked_targets), parked.per_target["other"].passed) == (["bot"], 100)
    told = read_report(folder.output).run.counts_to_json()["parkedTargets"]
    assert {name: target["code"] for name, target in told.items()} == {"bot": "target_unavailable"}
    assert {row.status for row in folder.rows() if row.target == "bot"} == {RowStatus.ERROR}
    assert "errors, parked; other 100/100" in screen.getvalue()

    folder.client.answer = echo
    finished = await folder.run()
    assert (finished.exit_code, finished.total.passed, finished.parked_targets) == (ExitCode.PASSED, 200, {})
    assert len(folder.client.requests) == asked + 200
    assert "parkedTargets" not in json.loads((folder.output / "run.json").read_text())


async def test_graders_that_fail_park_nobody(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Is it right?")
    write_evaluation(tmp_path, cases(6), [JUDGED])
    folder = EvaluationFolder(tmp_path, FakeClient(targets=("bot", "judge")))
    summary = await folder.run(error_policy=ErrorPolicy(max_errors=1, fail_fast=True))
    assert (summary.total.errors, summary.parked_targets) == (6, {})


async def entered(gate: StartGate, count: int) -> int:
    """How many of so many trials may begin at once."""
    trials = [asyncio.create_task(gate.enter()) for _ in range(count)]
    for _ in range(count):
        await asyncio.sleep(0)
    begun = sum(trial.done() for trial in trials)
    for trial in trials:
        trial.cancel()
    await asyncio.gather(*trials, return_exceptions=True)
    return begun


async def test_few_trials_begin_before_the_first_has_ended() -> None:
    gate = StartGate()
    assert await entered(gate, 9) == 3
    gate.leave(is_changed=False)
    assert await entered(gate, 9) == 9
    assert await entered(StartGate(seconds=0), 9) == 9, "without a known configuration nothing is waited for"
    slow = StartGate(seconds=0.01)
    for _ in range(9):
        await asyncio.wait_for(slow.enter(), 10)


async def test_another_configuration_closes_the_gate_again_for_as_long_as_it_takes() -> None:
    gate = StartGate(seconds=0.01)
    assert await entered(gate, 1) == 1
    gate.leave(is_changed=True)
    assert await entered(gate, 9) == 3
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(gate.enter(), 0.05)
    gate.leave(is_changed=True)
    assert await entered(gate, 9) == 1
    gate.leave(is_changed=False)
    assert await entered(gate, 9) == 9
