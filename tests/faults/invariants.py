"""What must hold after every fault, call by call: what callers were told, the ledger, the provider's count, and what is
left at the broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from faults.ledger_calls import LedgerCall
from faults.scenario import CallOutcome, ScenarioReport, ScenarioResult
from quintain_metadata.ledger.lifecycle import CallState
from support.process_fleet import ProcessFleet
from support.servers.rabbitmq_admin import BrokerAdmin

#: A publishing and a consuming connection each.
CONNECTIONS_EACH = 2

#: How long the broker may take to notice that a process, or a message, has gone, in seconds.
SETTLE_SECONDS, POLL_SECONDS = 40, 0.2


#: The lines of the table, in the order of the scenarios.
REPORTS = pytest.StashKey[list[ScenarioReport]]()


@dataclass
class InvariantChecker:
    """Checks the result of every scenario, and keeps its line of the table."""

    admin: BrokerAdmin
    reports: list[ScenarioReport] = field(default_factory=list)

    async def check(
        self,
        fleet: ProcessFleet,
        result: ScenarioResult,
        *,
        faults: frozenset[str] = frozenset(),
        second_answers: int = 0,
        tries: int = 1,
    ) -> ScenarioReport:
        """Check everything, end the fleet in good order, and look for what it left.

        ``faults`` are those that a caller may be told, ``second_answers`` how many calls may have been answered a
        second time, and otherwise, and ``tries`` how often an attempt may ask the provider.
        """
        report = result.report()
        self.reports.append(report)
        assert (report.lost, report.overspent) == (0, 0), report
        assert result.false_words() == []
        assert set(result.fault_counts()) <= faults, result.fault_counts()
        assert_counters_agree(result)
        for request_id, outcomes in result.outcomes.items():
            assert_call_consistent(
                request_id, outcomes, result.ledger_calls.get(request_id), result.provider_calls[request_id], tries
            )
        assert set(result.provider_calls) <= set(result.ledger_calls), (
            "the provider was asked what the ledger has not heard of"
        )
        differing = differing_answers(result)
        assert len(differing) <= second_answers, f"answered twice, and otherwise: {differing}"
        await self.assert_nothing_left(fleet)
        verification = json.loads(await asyncio.to_thread(fleet.quintain, "ledger", "verify", "--json"))
        assert verification["findings"] == [], verification
        return report

    async def assert_nothing_left(self, fleet: ProcessFleet) -> None:
        """No message waits, no connection is one too many; and when the services have stopped, none is left."""
        running = sum(process.alive for process in fleet.processes)
        await self._wait_for_connections(running * CONNECTIONS_EACH)
        await self._wait_for_empty_queues()
        for process in reversed(fleet.processes):  # the metadata service was there first, and goes last
            if process.alive:
                assert await asyncio.to_thread(process.stop) == 0, process.read_output()
        await self._wait_for_connections(0)
        await self._wait_for_empty_queues()

    async def _wait_for_connections(self, wanted: int) -> None:
        found: list[dict[str, object]] = []
        ends = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < ends:
            found = await asyncio.to_thread(self.admin.list_connections)
            if len(found) == wanted:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"{len(found)} connections where {wanted} belong: {found}")

    async def _wait_for_empty_queues(self) -> None:
        """Every queue is one of the protocol's or lives only while it is used, and those of the protocol are empty."""
        nonempty_queues: dict[object, object] = {}
        ends = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < ends:
            queues = await asyncio.to_thread(self.admin.list_queues)
            messages_by_queue = {
                queue["name"]: queue["messages"] for queue in queues if "x-expires" not in str(queue["arguments"])
            }
            messages_by_queue = {
                name: messages
                for name, messages in messages_by_queue.items()
                if not str(name).startswith(OTHER_SUITES_PREFIXES)
            }
            unknown_queues = [
                name
                for name in messages_by_queue
                if not str(name).startswith(("quintain.target.", *PROTOCOL_QUEUE_PREFIXES))
            ]
            assert unknown_queues == [], f"queues nobody knows: {unknown_queues}"
            nonempty_queues = {name: messages for name, messages in messages_by_queue.items() if messages}
            if not nonempty_queues:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"messages are left: {nonempty_queues}")


def invariant_checker(admin: BrokerAdmin, config: pytest.Config) -> InvariantChecker:
    """An `InvariantChecker` whose scenarios get their lines in the table."""
    return InvariantChecker(admin, config.stash.setdefault(REPORTS, []))


#: What other suites leave on a broker that is shared for the session: the bus's own suite names its queues so.
OTHER_SUITES_PREFIXES = ("t.",)

PROTOCOL_QUEUE_PREFIXES = ("quintain.metadata", "quintain.ledger.", "quintain.poison", "quintain.host.")


def assert_counters_agree(result: ScenarioResult) -> None:
    """The session's counters are those of its calls."""
    states = Counter(call.state for call in result.ledger_calls.values())
    info = result.info
    counted = (info.reserved, info.running, info.committed, info.in_doubt, info.refunded)
    names = (CallState.RESERVED, CallState.RUNNING, CallState.COMMITTED, CallState.IN_DOUBT, CallState.REFUNDED)
    assert counted == tuple(states[name] for name in names), f"{info} beside {states}"
    charged = sum(call.charged for call in result.ledger_calls.values())
    assert info.call_count == charged <= result.max_calls, f"{info.call_count} charged, {charged} in the ledger"


def assert_call_consistent(
    request_id: str, outcomes: list[CallOutcome], call: LedgerCall | None, provider_calls: int, tries: int
) -> None:
    """What its caller was told, its row in the ledger and the provider's count of one call agree."""
    description = f"{request_id}: told {outcomes}, {call}, the provider was asked {provider_calls} times"
    if call is None:
        assert provider_calls == 0, description
        assert not any(outcome.charged for outcome in outcomes), description
        return
    # No attempt, no question: who asked the provider had been granted it.
    assert provider_calls <= call.granted_attempts * tries, description
    for said in outcomes:
        if not said.is_fault:
            assert call.state in {CallState.COMMITTED, CallState.IN_DOUBT}, description
            assert provider_calls >= 1, description


def differing_answers(result: ScenarioResult) -> dict[str, set[str]]:
    """Calls that were told more than one thing: by a second reply, by another caller's, or when asked again."""
    texts = {
        request_id: {outcome.text for outcome in call_outcomes} for request_id, call_outcomes in result.outcomes.items()
    }
    for request_id, said in result.repeated_outcomes.items():
        texts[request_id].add(said.text)
    for request_id, reply_texts in result.reply_texts.items():
        texts[request_id].update(reply_texts)
    for told in texts.values():
        told.discard("overloaded")
    return {request_id: told for request_id, told in texts.items() if len(told) > 1}
