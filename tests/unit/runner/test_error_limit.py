"""When a target is parked because its endpoint seems dead: by faults, in a row and by share, and in a whole run."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from quintain.contracts.invoke import InvokeRequest
from quintain.errors import FAULTS, Fault, ProviderError, ProviderFailed, Rejected, TargetUnavailable, TimedOut
from quintain_runner.engine.run_settings import ErrorPolicy
from quintain_runner.engine.scheduler import ErrorLimit
from quintain_runner.report.progress_display import Lines
from quintain_runner.report.report_files import render_markdown
from quintain_runner.report.run_report import read_report
from quintain_runner.report.summary import ExitCode, ParkedTarget, exit_line, parked_target_notes
from quintain_runner.results.row import RowStatus
from support.evaluations import EXACT, EvaluationFolder, cases, write_evaluation, write_script
from support.fake_client import FakeClient, echo

REFUSED = "openai refused the credentials, the model or the quota (ModelHTTPError, HTTP 401)"
COMMAND = "quintain run eval.yaml"

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
        ("E" * 19, 20, None),
        ("ccc", 20, 3),
        ("cc", 2, 2),
        ("cc.cc.", 20, None),
        ("ctcc", 20, 4),
        ("c" * 60, 0, None),
        ("E" * 20, 20, 20),
        ("E" * 19 + "." + "E" * 19, 20, None),
        ("E" * 19 + "r" + "E" * 19, 20, None),
        ("E" * 19 + "t" + "E", 20, 21),
        ("E." * 24, 20, None),
        ("E." * 25, 20, 50),
        ("....E" * 10, 20, 50),
        ("." * 10 + "....E" * 8, 20, None),
        ("." * 41 + "E" * 9, 20, None),
        ("." * 41 + "E" * 12, 20, 52),
        ("t" * 500, 20, None),
        ("r" * 500, 20, None),
        ("EE", 1, 1),
        (".EE.EEE", 3, 7),
        ("E" * 49, 1000, None),
        ("E" * 50, 1000, 50),
        (".....E" * 20, 20, None),
        ("...E" * 20, 20, 50),
        ("E" * 500, 0, None),
    ],
)
def test_a_target_is_parked_by_errors_in_a_row_or_by_their_share(
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


def test_each_target_is_counted_by_itself() -> None:
    limit = ErrorLimit(ErrorPolicy(max_errors=2))
    for target in ("bot", "other", "bot"):
        limit.record(target, TargetUnavailable(REFUSED))
    assert (limit.may_begin("bot"), limit.may_begin("other")) == (False, True)
    reason = ParkedTarget(reason="2 errors in a row", code="target_unavailable", error=REFUSED)
    assert limit.parked_targets == {"bot": reason}


def test_what_was_under_way_when_a_target_was_parked_changes_nothing_of_the_reason() -> None:
    limit = ErrorLimit(ErrorPolicy(max_errors=1))
    for fault in (TargetUnavailable(REFUSED), None, ProviderFailed("later", charged=True)):
        limit.record("bot", fault)
    assert limit.parked_targets["bot"].error == REFUSED


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
    folder = prepared(tmp_path, 500, refusing("bot"))
    parked = await folder.run()
    asked = len(folder.client.requests)
    assert 20 <= asked <= 20 + folder.concurrency
    assert (parked.exit_code, parked.total.errors, parked.total.waiting) == (ExitCode.ERRORS, asked, 500 - asked)
    assert {row.status for row in folder.rows()} == {RowStatus.ERROR}
    assert len(folder.rows()) == asked

    folder.client.answer = echo
    finished = await folder.run()
    assert (finished.exit_code, finished.total.passed, finished.parked_targets) == (ExitCode.PASSED, 500, {})
    assert len(folder.client.requests) == asked + 500
    assert "parkedTargets" not in json.loads((folder.output / "run.json").read_text())


async def test_the_other_target_finishes(tmp_path: Path) -> None:
    screen = io.StringIO()
    folder = prepared(tmp_path, 100, refusing("bot"), "bot", "other")
    folder.progress = Lines(Console(file=screen, width=200))
    summary = await folder.run()
    assert (summary.per_target["other"].passed, summary.per_target["other"].waiting) == (100, 0)
    assert summary.per_target["bot"].waiting >= 100 - 20 - folder.concurrency
    assert (list(summary.parked_targets), summary.exit_code) == (["bot"], ExitCode.ERRORS)
    assert "errors, parked; other 100/100" in screen.getvalue()


@pytest.mark.parametrize(("max_errors", "is_parked"), [(20, True), (0, False)])
async def test_a_refused_credential_parks_its_target_at_the_first(
    tmp_path: Path, max_errors: int, is_parked: bool
) -> None:
    fault = TargetUnavailable(REFUSED)
    fault.provider_error = ProviderError(status=401)

    async def answer(_: InvokeRequest) -> str:
        raise fault

    write_evaluation(tmp_path, cases(30), [EXACT])
    folder = EvaluationFolder(
        tmp_path, FakeClient(answer), concurrency=1, error_policy=ErrorPolicy(max_errors=max_errors)
    )
    summary = await folder.run()
    assert (summary.total.errors, list(summary.parked_targets)) == ((1, ["bot"]) if is_parked else (30, []))
    if is_parked:
        line = exit_line(summary, COMMAND)
        assert REFUSED in line
        assert line.endswith(COMMAND)


async def test_graders_that_fail_park_nobody(tmp_path: Path) -> None:
    argv = write_script(tmp_path, "judge.py", "raise SystemExit('bug')")
    write_evaluation(tmp_path, cases(6), [{"name": "judge", "command": argv}])
    folder = EvaluationFolder(tmp_path, FakeClient(), error_policy=ErrorPolicy(max_errors=1, fail_fast=True))
    summary = await folder.run()
    assert (summary.total.errors, summary.parked_targets) == (6, {})


async def test_the_record_the_report_and_the_last_lines_say_why(tmp_path: Path) -> None:
    folder = prepared(tmp_path, 100, refusing("bot"))
    summary = await folder.run()
    wire = {"bot": {"reason": "20 errors in a row", "code": "target_unavailable", "error": REFUSED}}
    assert json.loads((folder.output / "run.json").read_text())["parkedTargets"] == wire
    from_folder = read_report(folder.output)
    assert from_folder.summary.parked_targets == summary.parked_targets
    note = f"parked bot after 20 errors in a row; the last: target_unavailable: {REFUSED}"
    assert parked_target_notes(from_folder.summary) == [note]
    assert note in render_markdown(from_folder, COMMAND)
    total = summary.total
    assert exit_line(summary, COMMAND) == (
        f'exit 1: bot is parked after 20 errors in a row ("{REFUSED}"), {total.waiting} trials wait and '
        f"{total.errors} erred, and every row so far is kept. When the endpoint works again, the same command goes on: "
        f"{COMMAND}"
    )
