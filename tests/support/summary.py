"""Lines for the end of pytest's report, also those of pytest-xdist's worker processes."""

from __future__ import annotations

import pytest


class Summary:
    """A pytest plugin: keeps the lines of each section and prints them at the end of the report.

    A worker process of pytest-xdist has no report; its lines go to the main process when it ends.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._sections: dict[str, list[str]] = {}
        self._config = config

    def report(self, line: str) -> None:
        """Print a line about a test server at once, and again at the end."""
        self.add("servers", line)
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(line)

    def add(self, section: str, *lines: str) -> None:
        """Print these lines at the end, in the section with this title."""
        self._sections.setdefault(section, []).extend(lines)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # this is a worker process
            output["summary"] = self._sections

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        for section, lines in getattr(node, "workeroutput", {}).get("summary", {}).items():
            self.add(section, *lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for section, lines in self._sections.items():
            terminalreporter.section(section)
            for line in lines:
                terminalreporter.write_line(line)
