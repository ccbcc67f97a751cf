"""A browser and a server of runs for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from support.browser import ViewPage, running_browser, start_view, visit
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


@pytest.fixture
def visitor(browser: Browser, address: str) -> Iterator[ViewPage]:
    """A browser that entered there; at the end nothing has gone wrong in its pages."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        one = visit(context, address)
        yield one
        assert one.problems == []
