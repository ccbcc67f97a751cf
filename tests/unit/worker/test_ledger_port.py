"""How a worker reaches the ledger of its own process: by function calls, and a reply follows its settle."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.bus.base import Envelope
from quintain.bus.memory import MemoryBroker
from support.memory_fleet import MemoryFleet, memory_fleet

CONFIG = "targets:\n  a: {provider: mock, response: Paris}\n"


def published_keys(fleet: MemoryFleet, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The routing keys of all that is published from now on."""
    keys = list[str]()
    memory = fleet.running.memory
    assert memory is not None

    def publish(exchange: str, key: str, envelope: Envelope, user: str = "guest") -> None:
        keys.append(key)
        MemoryBroker.publish(memory, exchange, key, envelope, user)

    monkeypatch.setattr(memory, "publish", publish)
    return keys


async def test_in_one_process_admits_and_settles_are_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet, fleet.client("a") as client:
        keys = published_keys(fleet, monkeypatch)
        await client.invoke("What is the capital of France?")
        assert "a" in keys
        assert not {"admit", "settle"}.intersection(keys)
        assert not any(key.startswith("admit.") for key in keys)


async def test_in_one_process_a_reply_follows_the_commit_of_its_settle(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        session = await fleet.open_session("a")
        # Another client: it does not know of the call, so that its question waits for no settle.
        async with fleet.client_of(session) as client, fleet.client_of(session) as other:
            for number in range(20):
                await client.invoke(f"What is {number}?")
                info = await other.get_info()
                assert (info.call_count, info.running) == (number + 1, 0)
