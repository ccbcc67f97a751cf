"""Pages that show by themselves what happens: a gateway's Fleet page over RabbitMQ, and a hosted target's run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from quintain.contracts.hosting import EmitEvent, SendEvent
from quintain.contracts.remote_target import (
    TrajectoryStart,
    WireControllable,
    WireEvent,
    WireObservable,
    WireResponse,
)
from quintain.contracts.session import SessionOpened
from quintain.remote.trajectory_recorder import TrajectoryFolder, TrajectoryRecorder
from support.browser import ViewPage, start_view, visit, watch_problems
from support.command_line import command_line
from support.process_fleet import ADMIN_TOKEN, Process, ProcessFleet, process_fleet
from support.results_folder import HOSTILE

TARGETS = ("echo", "slow")
CONFIG = """
targets:
  echo: {provider: mock}
  slow: {provider: mock, delay_ms: 60000}
"""

#: Of the whole test: it waits for many things one after the other.
pytestmark = pytest.mark.timeout(600)

#: What happens is seen as soon as it is known; a machine with much to do may take long.
SEEN_MS = 60_000


@pytest.fixture(scope="module")
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=TARGETS) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def worker(fleet: ProcessFleet) -> Process:
    return fleet.start_services("metadata", "worker")[1]


@pytest.fixture(scope="module")
def origin(fleet: ProcessFleet, worker: Process) -> str:
    gateway = fleet.start("serve", "gateway", "--port", "0")
    gateway.wait_for_output("ready  gateway")
    found = re.search(r"http://127\.0\.0\.1:\d+", gateway.read_output())
    return found[0]


def ask(origin: str, token: str, question: str) -> None:
    """One call through the gateway."""
    body = json.dumps({"question": question}).encode()
    with urlopen(Request(f"{origin}/invoke", body, {"Authorization": f"Bearer {token}"}), timeout=60) as answer:
        assert answer.status == 200


def enter(page: Page) -> None:
    """Give the token, once the page's script runs."""
    page.wait_for_load_state()
    page.locator("#token").fill(ADMIN_TOKEN)
    page.get_by_role("button", name="Show").click()
    page.get_by_role("heading", name="Fleet", exact=True).wait_for(timeout=SEEN_MS)
    page.locator("#targets").wait_for(timeout=SEEN_MS)


def test_the_page_shows_a_budget_spent_a_target_paused_and_a_worker_killed(
    fleet: ProcessFleet, worker: Process, origin: str, browser: Browser
) -> None:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        one = ViewPage(origin, page)
        watch_problems(one)
        answer = page.goto(f"{origin}/fleet")
        assert answer.status == 401
        assert "echo" not in page.content()
        page.wait_for_load_state()
        page.locator("#token").fill("not the token")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#enter-message")).to_contain_text("does not know this token", timeout=SEEN_MS)
        enter(page)

        echo, slow = page.locator("[data-target=echo]"), page.locator("[data-target=slow]")
        expect(echo).to_contain_text("ready", timeout=SEEN_MS)
        expect(page.locator("#workers")).to_contain_text("live", timeout=SEEN_MS)

        hostile = "<img src=x onerror=alert(1)>"
        words = ("session", "open", "--default-target", "echo", "--max-calls", "2", "--label", hostile, "--json")
        session = SessionOpened.from_wire(fleet.quintain(*words))
        budget = page.locator(f"[data-session='{session.session_id}']")
        expect(budget).to_contain_text("0 %", timeout=SEEN_MS)
        expect(budget).to_contain_text(hostile)
        ask(origin, session.token, "one")
        expect(budget).to_contain_text("50 %", timeout=SEEN_MS)
        ask(origin, session.token, "two")
        expect(budget).to_contain_text("spent", timeout=SEEN_MS)
        # Calls ended, so that there are times.
        expect(echo).to_contain_text(" ms / ", timeout=SEEN_MS)

        fleet.quintain("target", "pause", "slow", "--for", "3600")
        expect(slow).to_contain_text("paused until", timeout=SEEN_MS)
        fleet.quintain("target", "resume", "slow")
        expect(slow).to_contain_text("ready", timeout=SEEN_MS)

        page.locator("#q").fill("slo")
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("[data-target]")).to_have_count(1)
        page.goto(f"{origin}/fleet")

        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert one.serious_faults() == [], scheme
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

        worker.kill()
        expect(page.locator("#workers")).to_contain_text("does not answer", timeout=SEEN_MS)
        expect(echo).to_contain_text("no worker", timeout=SEEN_MS)
        assert one.problems == []


# The page of a hosted target's run: two lanes, and clocks on open events.

LETTER = WireControllable(name="letter", domain=["post", "tools"])
REPLY = WireObservable(name="reply", domain=["user"])


def sent(seq: int, request: str) -> SendEvent:
    event = WireEvent(kind="PreCall", event_id=str(seq), at=0, controllable=LETTER, domain=["post"], request=request)
    return SendEvent(event=event)


def test_a_run_is_shown_while_it_goes_on(browser: Browser, tmp_path: Path) -> None:
    path = TrajectoryFolder.create(tmp_path / "runs" / "attack").path / "20260101T000000-one.jsonl"
    start = TrajectoryStart(target="desk", title=HOSTILE, started_at="2026-01-01T00:00:00+00:00")
    with command_line(tmp_path) as shell, browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        with TrajectoryRecorder(path, start) as recorder:
            recorder.record_item(1, sent(1, "first"))
            recorder.record_item(2, sent(2, HOSTILE))
            one = visit(context, start_view(shell))
            page = one.page
            page.get_by_role("link", name="attack", exact=True).click()
            expect(page.locator("tbody tr")).to_contain_text("running")
            page.get_by_role("link", name="desk").click()
            expect(page.locator(".waiting li")).to_have_count(2)
            clock = page.locator(".waiting .clock").first
            was = clock.text_content()
            expect(clock).not_to_have_text(str(was))
            recorder.record_response(2, WireResponse(kind="Injection", value=HOSTILE))
            expect(page.locator(".waiting li")).to_have_count(1)
            expect(page.locator(".step").nth(1).locator(".reply")).to_contain_text("Injection")
            event = WireEvent(kind="Observed", event_id="3", at=0, observable=REPLY, content=f'"{"long " * 60}"')
            recorder.record_item(3, EmitEvent(event=event))
            expect(page.locator(".step")).to_have_count(3)
            assert one.serious_faults_of_schemes() == {}
        expect(page.locator("h1")).to_contain_text("ended")
        expect(page.locator(".step").first).to_contain_text("no reply")
        page.keyboard.press("j")
        expect(page.locator(".step").first).to_have_attribute("data-current", "")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("main script, main img").count() == 0
        page.keyboard.press("u")
        expect(page.locator("tbody tr")).to_contain_text("ended")
        assert one.problems == []
