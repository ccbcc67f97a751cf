"""The system's Chromium, driven by Playwright, for tests of pages."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_core_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from quintain.settings import environment
from support.command_line import CommandLine
from support.servers.packages import DebianPackages, Report

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _find_chromium(variables: Mapping[str, str]) -> Path | None:
    for name in _NAMES:
        if found := shutil.which(name, path=variables.get("PATH")):
            return Path(found)
    return None


CHROMIUM = DebianPackages(("chromium", "fonts-dejavu-core"), _find_chromium)


@contextlib.contextmanager
def running_browser(report: Report) -> Iterator[Browser]:
    """A Chromium without a window; it is installed first where it is missing.

    Raises `ServerUnavailable` where there is none and it cannot be installed.
    """
    program = CHROMIUM.find_or_install(environment(), report)
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs a user that is not root; the pages are ours.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class ViewPage:
    """A browser at a server of `quintain view`, and what went wrong in its pages."""

    origin: str
    page: Page
    problems: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        """Open a page of the server."""
        self.page.goto(f"{self.origin}{path}")
        return self.page

    def serious_faults(self, *rules: str) -> list[tuple[str, list[str]]]:
        """What axe-core finds in the page that is serious or critical, by these rules or by all."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        # Of what passes, which is nearly all, each node would be described.
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found: list[Any] = self.page.evaluate("options => axe.run(options).then(found => found.violations)", options)
        return [
            (fault["id"], [node["html"][:120] for node in fault["nodes"]])
            for fault in found
            if fault["impact"] in {"serious", "critical"}
        ]

    def serious_faults_of_schemes(self) -> dict[str, list[tuple[str, list[str]]]]:
        """As `serious_faults`, in both colour schemes: only colours differ in the dark. Empty where there is none."""
        self.page.emulate_media(color_scheme="dark")
        dark = self.serious_faults("color-contrast")
        self.page.emulate_media(color_scheme="light")
        return {scheme: faults for scheme, faults in (("dark", dark), ("light", self.serious_faults())) if faults}


def watch_problems(one: ViewPage) -> None:
    """Note what goes wrong in the page: errors, dialogs, and what its policy refuses."""
    page = one.page
    page.on("pageerror", lambda error: one.problems.append(str(error)))
    page.on("dialog", lambda dialog: one.problems.append(f"dialog: {dialog.message}"))
    page.on("console", lambda line: one.problems.append(line.text) if "Content Security Policy" in line.text else None)


def watched_page(context: BrowserContext, address: str) -> ViewPage:
    """A new page for the server of an address that the command printed."""
    one = ViewPage(address.split("/#", maxsplit=1)[0], context.new_page())
    watch_problems(one)
    return one


def visit(context: BrowserContext, address: str) -> ViewPage:
    """Open the address that the command printed, in a new page of this context, and wait until it shows the runs."""
    one = watched_page(context, address)
    one.page.goto(address)
    one.page.get_by_role("heading", name="Runs").wait_for()
    return one


def start_view(shell: CommandLine, *words: str) -> str:
    """Start the server, and give the address that it printed."""
    command = shell.start("view", "--no-open", "--json", *words)
    command.wait_for(lambda one: one.stdout.endswith("\n"))
    address = json.loads(command.stdout)["url"]
    assert isinstance(address, str)
    return address
