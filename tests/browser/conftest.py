"""A browser and a server of runs for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from support.browser import ViewPage, running_browser, start_view, visit, watched_page
from support.command_line import CommandLine
from support.servers.errors import ServerUnavailable

# What a page must show, it shows at once; a busy machine may take longer, in milliseconds.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, until the file's end: Playwright runs an event loop in this thread, which no other test may meet.

    Where it cannot be had the tests fail, because nothing else shows that the pages work.
    """
    try:
        with running_browser(print) as browser:
            yield browser
    except ServerUnavailable as reason:
        pytest.fail(f"no Chromium: {reason}")


@pytest.fixture(scope="module")
def address(shell: CommandLine) -> str:
    """The address that `quintain view` printed, of the runs below the folder of the file's ``shell``."""
    return start_view(shell)


@pytest.fixture(scope="module")
def visited(browser: Browser, address: str) -> Iterator[BrowserContext]:
    """A browser that entered there."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        visit(context, address).page.close()
        yield context


@pytest.fixture
def visitor(visited: BrowserContext, address: str) -> Iterator[ViewPage]:
    """A new page of that browser; at the end nothing has gone wrong in it."""
    one = watched_page(visited, address)
    yield one
    one.page.close()
    assert one.problems == []
