"""The table of all faults, printed at the end of the run."""

from __future__ import annotations

import pytest

from faults.harness import Ending, table

_ENDINGS = pytest.StashKey[list[Ending]]()


@pytest.fixture
def endings(request: pytest.FixtureRequest) -> list[Ending]:
    return request.config.stash.setdefault(_ENDINGS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    endings = terminalreporter.config.stash.get(_ENDINGS, [])
    if endings:
        terminalreporter.section("faults")
        for line in table(endings):
            terminalreporter.write_line(line)
