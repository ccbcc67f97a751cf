"""The site that ``make docs`` builds: its pages in both colour schemes, and on a telephone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from generate.site import build
from support.browser import ViewPage

#: A page of each kind: one with code, pictures and tables, one with a drawing, one outside the navigation.
KINDS = ("index.html", "concepts/call.html", "404.html")

_LINKS_WITHOUT_NAME = """() => [...document.querySelectorAll("a[href]")]
  .filter((link) => !(link.textContent.trim() || link.title || link.ariaLabel || link.querySelector("img[alt], title")))
  .map((link) => link.outerHTML)"""


class _Files(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the site's pages."""
    site = tmp_path_factory.mktemp("docs") / "site"
    assert build(site) == 0
    return site / "html"


@pytest.fixture(scope="module")
def origin(pages: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(pages))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.timeout(600)  # axe-core takes long on a machine with much to do
@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_axe_finds_nothing_serious_in_either_scheme(browser: Browser, origin: str, scheme: str) -> None:
    with browser.new_context(color_scheme="light" if scheme == "default" else "dark") as context:
        visitor = ViewPage(origin, context.new_page())
        for path in KINDS:
            page = visitor.go(path)
            assert page.evaluate("document.body.dataset.mdColorScheme") == scheme, path
            assert visitor.serious_faults(*([] if scheme == "default" else ["color-contrast"])) == [], path


def test_the_scheme_follows_the_system_until_the_reader_chooses_one(browser: Browser, origin: str) -> None:
    with browser.new_context(color_scheme="dark") as context:
        page = ViewPage(origin, context.new_page()).go("results.html")
        page.emulate_media(color_scheme="light")
        page.locator("body[data-md-color-scheme=default]").wait_for()
        page.get_by_title("Switch to light mode").click()
        page.emulate_media(color_scheme="dark")
        page.goto(f"{origin}evaluation.html")
        page.locator("body[data-md-color-scheme=default]").wait_for()


def test_each_link_of_each_page_has_a_name_and_no_page_is_wider_than_a_telephone(browser: Browser, pages: Path) -> None:
    # Decisions are prose, of which one page shows all; to open each of them takes a third of the time.
    paths = sorted({*pages.rglob("*.html")} - {*pages.glob("decisions/*-*.html")})
    assert {pages / path for path in KINDS} < set(paths)
    # Nor do the pages' scripts change it: the search, copying, the choice of a scheme.
    with browser.new_context(viewport={"width": 390, "height": 800}, java_script_enabled=False) as context:
        page = context.new_page()
        for path in paths:
            page.goto(path.as_uri())  # without a server, which takes twice as long
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert page.evaluate(_LINKS_WITHOUT_NAME) == [], path
