"""The page of a hosted target's run in a browser: two lanes, clocks on open events, and it grows by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from quintain.contracts.hosting import EmitEvent, SendEvent
from quintain.contracts.remote_target import (
    TrajectoryStart,
    WireControllable,
    WireEvent,
    WireObservable,
    WireResponse,
)
from quintain.remote.trajectory_recorder import TrajectoryFolder, TrajectoryRecorder
from support.browser import start_view, visit
from support.command_line import command_line
from support.results_folder import HOSTILE

#: Of the whole test: axe-core takes long on a machine with much to do.
pytestmark = pytest.mark.timeout(600)

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
