"""What must hold after every fault, call by call: the callers' word, the books, the provider's count, and what is
left at the broker."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from faults.harness import Aftermath, Ending, Said
from faults.ledger_books import Book
from quintain_metadata.lifecycle import State
from support.fleet import ProcessFleet
from support.servers.rabbitmq_admin import BrokerAdmin

#: A publishing and a consuming connection each.
CONNECTIONS_EACH = 2

#: How long the broker may take to notice that a process, or a message, has gone, in seconds.
PATIENCE_SECONDS = 40


#: The lines of the table, in the order of the sieges.
ENDINGS = pytest.StashKey[list[Ending]]()


@dataclass
class Reckoning:
    """Holds every siege's aftermath against the rules, and keeps a line of the table of each."""

    admin: BrokerAdmin
    endings: list[Ending] = field(default_factory=list)

    async def hold(
        self,
        fleet: ProcessFleet,
        after: Aftermath,
        *,
        tries: int = 1,
        faults: frozenset[str] = frozenset(),
        second_answers: int = 0,
    ) -> Ending:
        """Check everything, end the fleet in good order, and look for what it left.

        ``tries`` is how often one attempt may ask the provider; ``faults`` which faults a caller may be told;
        ``second_answers`` how many calls may have been answered a second time, and otherwise.
        """
        ending = after.ending()
        self.endings.append(ending)
        assert (ending.lost, ending.overspent) == (0, 0), ending
        assert set(after.faults()) <= faults, after.faults()
        counters_agree(after)
        for request_id, told in after.said.items():
            agree(request_id, told, after.books.get(request_id), after.provider[request_id], tries)
        assert set(after.provider) <= set(after.books), "the provider was asked what the ledger has not heard of"
        differing = answered_otherwise(after)
        assert len(differing) <= second_answers, f"answered twice, and otherwise: {differing}"
        await self.leaves_nothing(fleet)
        verdict = json.loads(await asyncio.to_thread(fleet.quintain, "ledger", "verify", "--json"))
        assert verdict["findings"] == [], verdict
        return ending

    async def leaves_nothing(self, fleet: ProcessFleet) -> None:
        """No message waits, no connection is one too many; and when the services have stopped, none is left."""
        running = sum(process.alive for process in fleet.processes)
        await self._until_connections_are(running * CONNECTIONS_EACH)
        await self._until_queues_are_empty()
        for process in reversed(fleet.processes):  # the metadata service was there first, and goes last
            if process.alive:
                assert await asyncio.to_thread(process.stop) == 0, process.text()
        await self._until_connections_are(0)
        await self._until_queues_are_empty()

    async def _until_connections_are(self, wanted: int) -> None:
        found: list[object] = []
        for _ in range(PATIENCE_SECONDS):
            found = await self._listed("list_connections", "pid", "client_properties")
            if len(found) == wanted:
                return
            await asyncio.sleep(1)
        raise AssertionError(f"{len(found)} connections where {wanted} belong: {found}")

    async def _until_queues_are_empty(self) -> None:
        """Every queue is one of the protocol's or lives only while it is used, and those of the protocol are empty."""
        full: dict[object, object] = {}
        for _ in range(PATIENCE_SECONDS):
            queues = await self._listed("list_queues", "name", "arguments", "messages")
            ours = {queue["name"]: queue["messages"] for queue in queues if "x-expires" not in str(queue["arguments"])}
            ours = {name: messages for name, messages in ours.items() if not str(name).startswith(OTHERS)}
            strange = [name for name in ours if not str(name).startswith(("quintain.target.", *CONSTANTS))]
            assert strange == [], f"queues nobody knows: {strange}"
            full = {name: messages for name, messages in ours.items() if messages}
            if not full:
                return
            await asyncio.sleep(1)
        raise AssertionError(f"messages are left: {full}")

    async def _listed(self, *words: str) -> list[dict[str, object]]:
        told = await asyncio.to_thread(self.admin.rabbitmqctl, *words, "--formatter", "json")
        listed: list[dict[str, object]] = json.loads(told[told.index("[") :])
        return listed


def reckoning_at(admin: BrokerAdmin, config: pytest.Config) -> Reckoning:
    """A reckoning whose sieges get their lines in the table."""
    return Reckoning(admin, config.stash.setdefault(ENDINGS, []))


#: What other suites leave on a broker that is shared for the session: the bus's own suite names its queues so.
OTHERS = ("t.",)

CONSTANTS = ("quintain.metadata", "quintain.ledger.", "quintain.poison", "quintain.host.")


def counters_agree(after: Aftermath) -> None:
    """The session's counters are those of its calls."""
    states = Counter(book.state for book in after.books.values())
    info = after.info
    counted = (info.reserved, info.running, info.committed, info.in_doubt, info.refunded)
    names = (State.RESERVED, State.RUNNING, State.COMMITTED, State.IN_DOUBT, State.REFUNDED)
    assert counted == tuple(states[name] for name in names), f"{info} beside {states}"
    charged = sum(book.charged for book in after.books.values())
    assert info.call_count == charged <= after.max_calls, f"{info.call_count} charged, {charged} by the books"


def agree(request_id: str, told: list[Said], book: Book | None, asked: int, tries: int) -> None:
    """One call: its caller, its book and its provider tell one story."""
    story = f"{request_id}: told {told}, {book}, the provider was asked {asked} times"
    if book is None:
        assert asked == 0, story
        assert not any(said.charged for said in told if said.text != "expired"), story
        return
    # No attempt, no question: who asked the provider had been granted it.
    assert asked <= book.granted * tries, story
    for said in told:
        if not said.fault:
            assert book.state in {State.COMMITTED, State.IN_DOUBT}, story
            assert asked >= 1, story
        elif said.text != "expired":
            assert said.charged == book.charged, story


def answered_otherwise(after: Aftermath) -> dict[str, set[str]]:
    """Calls that were told more than one thing: by a second reply, by another caller's, or when asked again."""
    words = {request_id: {said.text for said in told} for request_id, told in after.said.items()}
    for request_id, said in after.again.items():
        words[request_id].add(said.text)
    for request_id, heard in after.heard.items():
        words[request_id].update(heard)
    for told in words.values():
        told.discard("overloaded")
    return {request_id: told for request_id, told in words.items() if len(told) > 1}
