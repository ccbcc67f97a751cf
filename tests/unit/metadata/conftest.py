"""A metadata service alone, and a session of five calls, which most tests here begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from quintain.contracts.session import SessionOpened
from support.metadata_service import Metadata, run_metadata_service


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    """A service with target ``a``, which the worker ``w1`` serves; files with another one have their own."""
    async with run_metadata_service() as alone:
        await alone.driver.register()
        yield alone


@pytest.fixture
async def session(metadata: Metadata) -> SessionOpened:
    return await metadata.driver.open_session(max_calls=5)
