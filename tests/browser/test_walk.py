"""All pages during one run over RabbitMQ: it starts, a target is paused, the worker is killed, and the budget is spent.

What happens is taken from what the commands and the files say; from then on the time is measured until the page shows
it. The times are lines of the report, beside the 2 s that are promised; a busy machine may take longer.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from quintain.contracts.session import SessionOpened
from support.browser import ViewPage, start_view, visit, watch_problems
from support.command_line import CommandLine, command_line
from support.evaluations import EXACT, rows_of, write_files
from support.process_fleet import ADMIN_TOKEN, ProcessFleet, process_fleet
from support.quick import lease_variable
from support.results_folder import graded_row, write_results

#: `other` is paused when the run starts; the budget is more than what `echo` needs.
CASES, MAX_CALLS = 120, 160
CONFIG = """
targets:
  echo: {provider: mock, delay_ms: 300}
  other: {provider: mock, delay_ms: 300}
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WAIT_SECONDS = 120


class Stopwatch:
    """Measures how long after something happened a page shows it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def see(self, event: str, shown: Callable[[float], None]) -> None:
        """Wait until the page shows what has just happened; ``shown`` gets the timeout in milliseconds."""
        began = time.monotonic()
        shown(1000 * WAIT_SECONDS)
        self.lines.append(f"{event:42} {time.monotonic() - began:5.2f} s  (promised: 2 s)")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def contains(place: Locator, text: str) -> Callable[[float], None]:
    return lambda timeout: expect(place).to_contain_text(text, timeout=timeout)


def counts(place: Locator, count: int) -> Callable[[float], None]:
    return lambda timeout: expect(place).to_have_count(count, timeout=timeout)


@pytest.fixture
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=("echo", "other")) as fleet:
        fleet.extra_env |= lease_variable()
        evaluation = {"dataset": "cases.jsonl", "targets": ["echo", "other"], "graders": [EXACT], "threshold": 0}
        write_files(fleet.folder, cases=CASES, eval_yaml=json.dumps(evaluation))
        rows = [graded_row(f"case-{n}", n % 2, target=target) for n in (1, 2) for target in ("echo", "other")]
        write_results(fleet.folder / "runs" / "before", rows, targets=["echo", "other"])
        yield fleet


@pytest.fixture
def shell(fleet: ProcessFleet) -> Iterator[CommandLine]:
    env = {"QUINTAIN_BROKER_URL": fleet.broker_url, "QUINTAIN_ADMIN_TOKEN": ADMIN_TOKEN}
    with command_line(fleet.folder, env) as shell:
        yield shell


def open_fleet_page(fleet: ProcessFleet, page: Page) -> ViewPage:
    gateway = fleet.start("serve", "gateway", "--port", "0")
    gateway.wait_for_output("ready  gateway")
    found = re.search(r"http://127\.0\.0\.1:\d+", gateway.read_output())
    assert found is not None
    one = ViewPage(found[0], page)
    watch_problems(one)
    one.go("/fleet").wait_for_load_state()
    page.locator("#token").fill(ADMIN_TOKEN)
    page.get_by_role("button", name="Show").click()
    expect(page.locator("[data-target=echo]")).to_contain_text("ready", timeout=1000 * WAIT_SECONDS)
    return one


def record_of(output: Path) -> dict[str, object]:
    """The run's record; empty before it has begun."""
    path = output / "run.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    assert isinstance(record, dict)
    return record


def rows_of_case(output: Path, case_id: str) -> int:
    return sum(row["caseId"] == case_id for row in rows_of(output))


def spend(fleet: ProcessFleet, origin: str) -> str:
    """Open a session for one call, make it, and return the session's id."""
    words = ("session", "open", "--default-target", "echo", "--max-calls", "1", "--json")
    session = SessionOpened.from_wire(fleet.quintain(*words))
    headers = {"Authorization": f"Bearer {session.token}"}
    with urlopen(Request(f"{origin}/invoke", b'{"question": "q"}', headers), timeout=WAIT_SECONDS) as answer:
        assert answer.status == 200
    return session.session_id


def test_every_page_shows_what_happens_during_a_run(
    fleet: ProcessFleet, shell: CommandLine, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    _, worker = fleet.start_services("metadata", "worker")
    fleet.quintain("target", "pause", "other", "--for", "3600")
    watch, output = Stopwatch(), fleet.folder / "runs" / "now"
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        fleet_page = open_fleet_page(fleet, context.new_page())
        seen = fleet_page.page
        view = visit(context, start_view(shell))
        page = view.page

        # It starts: the list of runs, the fleet and the run's own page.
        words = ("run", "eval.yaml", "--output", "runs/now", "--max-calls", str(MAX_CALLS), "--concurrency", "4")
        run = shell.start(*words, "--max-errors", "1000")
        wait_for(lambda: bool(record_of(output).get("sessionId")))
        watch.see("runs: the run has begun", contains(page.locator("main"), "now"))
        session_id = record_of(output)["sessionId"]
        watch.see("fleet: the run's budget", counts(seen.locator(f"[data-session='{session_id}']"), 1))
        page.get_by_role("link", name="now", exact=True).click()
        wait_for(lambda: len(rows_of(output)) > 0)
        case_id = str(rows_of(output)[0]["caseId"])
        watch.see("run: the first row", contains(page.locator(".matrix"), case_id))

        # A target is paused, and shown so; the case page of a case that the other target has answered stays open.
        fleet.quintain("target", "pause", "echo", "--for", "3600")
        watch.see("fleet: a target is paused", contains(seen.locator("[data-target=echo]"), "paused until"))
        page.get_by_role("link", name=case_id, exact=True).click()
        expect(page.locator("article.answer")).to_have_count(1)

        worker.kill()
        watch.see("fleet: a worker is killed", contains(seen.locator("#workers"), "does not answer"))
        fleet.start_service("worker")
        for target in ("echo", "other"):
            fleet.quintain("target", "resume", target)
            watch.see(f"fleet: {target} is resumed", contains(seen.locator(f"[data-target={target}]"), "ready"))
        wait_for(lambda: rows_of_case(output, case_id) == 2)
        watch.see("case: its second answer", counts(page.locator("article.answer"), 2))

        # The run compared with the one before it, of other cases, while it goes on.
        view.go("/run/now/compare/before?force=1")
        expect(page.locator("article.pair").first).to_be_visible()

        view.go("/run/now")
        wait_for(lambda: bool(record_of(output).get("endedAt")))
        watch.see("run: the budget is spent", contains(page.locator("h1"), "budget spent"))
        assert run.wait().code == 4
        session_id = spend(fleet, fleet_page.origin)
        watch.see("fleet: a budget is spent", contains(seen.locator(f"[data-session='{session_id}']"), "spent"))
        assert [*view.problems, *fleet_page.problems] == []

    # The same run as one file, from the disk and without a network.
    shell.run("report", "runs/now", "--html", str(tmp_path / "report.html"))
    with browser.new_context(offline=True) as context:
        file = context.new_page()
        file.goto(f"file://{tmp_path / 'report.html'}")
        file.locator(".matrix a", has_text=case_id).first.click()
        expect(file.locator("article.answer")).to_have_count(2)

    summary = request.config.pluginmanager.getplugin("quintain-summary")
    assert summary is not None
    summary.add("seen in the browser during a run", *watch.lines)
