"""Makes the pictures of the pages in docs/: ``make screenshots``. In both themes, and as wide as a telephone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from support.browser import running_browser, start_view, visit
from support.busy_fleet import busy_fleet
from support.command_line import CommandLine, command_line
from support.evaluations import copy_capitals
from support.memory_fleet import ADMIN_TOKEN
from support.page_shell import Tutorial, running_stand_in
from support.results_folder import sample_trajectory

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

_CASE, _TRAJECTORY = "/run/eval/case?id=br&at=5", "/run/attack/trajectories/20260101T120000-sample.jsonl"

#: The pages of `quintain view`, and that of a gateway.
PAGES = {"run": "/run/eval", "case": _CASE, "trajectory": _TRAJECTORY, "fleet": "/fleet"}

#: The ending of a picture's name, its theme, and whether it is as wide as a telephone.
SHOTS: list[tuple[str, Literal["light", "dark"], bool]] = [
    ("light", "light", False),
    ("dark", "dark", False),
    ("narrow", "light", True),
]

#: In pixels. A run is shown down to its cases; a fleet has eleven columns.
_WIDTHS = {"run": 1_100, "case": 1_100, "trajectory": 1_100, "tutorial": 1_100, "fleet": 1_280}
_HEIGHTS = {"run": 1_150, "case": 800, "trajectory": 1_050, "tutorial": 1_000, "fleet": 1_330}


def main() -> None:
    """Run the example, the tutorial and a fleet, and take the pictures."""
    PICTURES.mkdir(exist_ok=True)
    expect.set_options(timeout=30_000)
    with tempfile.TemporaryDirectory() as name, command_line(Path(name)) as shell, running_browser(print) as browser:
        _run_example(shell)
        with sample_trajectory(shell.folder / "runs" / "attack"):
            address = start_view(shell)
            for page_name in ("run", "case", "trajectory"):
                for ending, scheme, is_narrow in SHOTS:
                    with _context(browser, page_name, scheme, is_narrow=is_narrow) as context:
                        _take(visit(context, address).go(PAGES[page_name]), f"{page_name}-{ending}")
        _take_tutorial(browser)
        with busy_fleet() as gateway:
            for ending, scheme, is_narrow in SHOTS:
                with _context(browser, "fleet", scheme, is_narrow=is_narrow) as context:
                    _take(_enter_fleet(context.new_page(), gateway), f"fleet-{ending}")


def _take_tutorial(browser: Browser) -> None:
    """The pages as its chapters 7 and 8 speak of them, in one theme."""
    with tempfile.TemporaryDirectory() as name, command_line(Path(name)) as shell, running_stand_in() as port:
        reader = Tutorial(shell, port)
        for number in range(1, 9):
            reader.follow(number)
        with _context(browser, "tutorial", "light", is_narrow=False) as context:
            view = visit(context, reader.address)
            page = view.go("/run/triage")
            for column, outcome in (("small · desk", "failed"), ("large · desk", "passed")):
                page.get_by_role("combobox", name=column, exact=True).select_option(label=outcome)
            expect(page.locator("main").get_by_text("9 cases", exact=True)).to_be_visible()
            _take(page, "tutorial-run-light")
            page.get_by_role("link", name="You took a late fee").click()
            expect(page.get_by_role("heading", name="late-fee")).to_be_visible()
            _take(page, "tutorial-case-light")
            _take(view.go("/run/rules/compare/triage"), "tutorial-compare-light")


def _context(browser: Browser, page_name: str, scheme: Literal["light", "dark"], *, is_narrow: bool) -> BrowserContext:
    viewport: ViewportSize = {"width": 390 if is_narrow else _WIDTHS[page_name], "height": _HEIGHTS[page_name]}
    return browser.new_context(viewport=viewport, color_scheme=scheme)


def _enter_fleet(page: Page, gateway: str) -> Page:
    page.goto(f"{gateway}/fleet")
    page.locator("#token").fill(ADMIN_TOKEN)
    page.get_by_role("button", name="Show").click()
    # The times of calls come with the first events, and what workers answer with their cards.
    expect(page.locator("[data-target=search]")).to_contain_text(" ms / ")
    expect(page.locator("[data-target=search] td").nth(3)).to_have_text("1")
    expect(page.locator(".facts dd").first).not_to_have_text("0")
    return page


def _take(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.png")
    print(PICTURES / f"{name}.png")


def _run_example(shell: CommandLine) -> None:
    copy_capitals(shell.folder)
    # The heading of a page is the name of this file.
    (shell.folder / "eval.yaml").rename(shell.folder / "capitals.yaml")
    shell.run("run", "capitals.yaml", "--output", "runs/eval")


if __name__ == "__main__":
    main()
