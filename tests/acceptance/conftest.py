"""What the acceptance tests stand on: a shell in an empty folder, and one before a fleet of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A shell in an empty folder, with no broker, no configuration and no key."""
    with command_line(tmp_path) as shell:
        yield shell
