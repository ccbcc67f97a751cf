"""superred's environment for the tests here, and which files are for its pytest alone."""

from __future__ import annotations

import importlib

import pytest

from support.superred_environment import SuperredEnvironment, find_superred_environment


def _has_superred() -> bool:
    try:
        importlib.import_module("superred.core")
    except ImportError:
        return False
    return True


#: What drives superred's own Controller is collected by that environment's pytest alone.
collect_ignore = [] if _has_superred() else ["controllers"]


@pytest.fixture(scope="session")
def superred_environment() -> SuperredEnvironment:
    """An environment that has superred."""
    return find_superred_environment()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first of them makes the environment, on its own time."""
    for item in items:
        if "superred_environment" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(1500))
