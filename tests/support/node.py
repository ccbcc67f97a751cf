"""Node.js for tests of what is written in JavaScript; a test that cannot have it says so, and is counted as skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quintain.settings import environment
from support.servers.errors import ServerUnavailable
from support.servers.nodejs import find_node, npm_package

AGENTV_VERSION = "4.42.4"


def node_or_skip(say: Callable[[str], None]) -> str:
    try:
        return find_node(environment(), say)
    except ServerUnavailable as reason:
        pytest.skip(f"no Node.js: {reason}")


def agentv_or_skip(say: Callable[[str], None]) -> Path:
    """AgentV's command."""
    node_or_skip(say)
    try:
        return npm_package("agentv", AGENTV_VERSION, environment(), say) / ".bin" / "agentv"
    except ServerUnavailable as reason:
        pytest.skip(f"no AgentV from npm: {reason}")
