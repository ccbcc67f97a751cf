"""The list of runs on a telephone: cards, a search, a line of passes, and a run that is renamed and deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from support.browser import ViewPage, start_view, visit
from support.command_line import CommandLine, command_line
from support.results_folder import graded_row, write_results

pytestmark = pytest.mark.timeout(600)

LONG_NAME = "of-a-" * 20 + "run"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("runs")) as shell:
        for number, name in enumerate(("first", "ריצה", LONG_NAME)):
            write_results(shell.folder / "runs" / name, [graded_row("1", 1.0), graded_row("2", float(number > 0))])
        (shell.folder / "runs" / "half").mkdir()
        (shell.folder / "runs" / "half" / "run.json").write_text('{"schemaVersion"')
        yield shell


@pytest.fixture
def telephone(browser: Browser, shell: CommandLine) -> Iterator[ViewPage]:
    with browser.new_context(viewport={"width": 390, "height": 800}) as context:
        one = visit(context, start_view(shell))
        yield one
        assert one.problems == []


def test_runs_are_cards_that_are_found_renamed_and_deleted(telephone: ViewPage, shell: CommandLine) -> None:
    page, runs = telephone.page, shell.folder / "runs"
    for path in ("/", "/run/half/move"):
        telephone.go(path)
        assert telephone.serious_faults_of_schemes() == {}, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    telephone.go("/")
    assert page.evaluate("(one => one.scrollWidth - one.clientWidth)(document.querySelector('.scroll'))") == 0
    expect(page.get_by_role("img")).to_have_accessible_name(re.compile(r"first, \d{4}-\d\d-\d\d: 50 %"))
    page.get_by_role("searchbox").fill("half nowhere")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_have_text("0 of 4 runs")
    assert page.url.endswith("/?q=half+nowhere")
    page.get_by_role("link", name="half").click()
    expect(page.get_by_role("row", name="half")).to_contain_text("not readable")
    page.get_by_role("link", name="Rename or delete half").click()
    page.get_by_role("button", name="Move it to the trash").click()
    expect(page.locator("#back")).to_contain_text(".trash")
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="Rename or delete first").click()
    page.get_by_role("textbox").fill("../first")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_role("textbox").fill("zeroth")
    page.keyboard.press("Enter")
    expect(page.locator("#back")).to_contain_text("zeroth")
    assert sorted(path.name for path in Path(runs).iterdir()) == sorted([".trash", LONG_NAME, "zeroth", "ריצה"])
