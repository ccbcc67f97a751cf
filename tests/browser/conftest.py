"""A browser and a server of runs for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from support.browser import running_browser
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
