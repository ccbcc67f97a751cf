"""The short form and the long one, the fixtures of every siege, and the table of all faults at the end.

``QUINTAIN_TEST_FAULTS=long`` (`make faults`) runs everything at full length; otherwise fewer calls are sent, and
what is marked ``long`` is deselected, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.invariants import REPORTS, InvariantChecker, invariant_checker
from faults.scenario import BOT, CONFIG, format_table
from quintain.settings import environment
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

_DESELECTED = pytest.StashKey[int]()

LONG_CALLS, SHORT_CALLS = 120, 40

#: How long one siege may take, where other programs have the cores too.
SCENARIO_SECONDS = 300


def is_long() -> bool:
    """Whether everything is to run."""
    return environment().get("QUINTAIN_TEST_FAULTS") == "long"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(SCENARIO_SECONDS))
    deselected = [] if is_long() else [item for item in items if item.get_closest_marker("long")]
    config.stash[_DESELECTED] = len(deselected)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    endings = config.stash.get(REPORTS, [])
    if endings:
        form = "long" if is_long() else f"short: {config.stash.get(_DESELECTED, 0)} sieges are left to `make faults`"
        summary = config.pluginmanager.getplugin("quintain-summary")
        summary.add("faults", *format_table(endings), f"{len(endings)} sieges, the {form}")


@pytest.fixture
def questions() -> list[str]:
    """What a siege asks; each is its own request id."""
    return [f"q{number}" for number in range(LONG_CALLS if is_long() else SHORT_CALLS)]


@pytest.fixture(scope="session")
def fast_queue_stats(broker_admin: BrokerAdmin) -> None:
    """Quorum queues tell how many messages they have ten times as often as by default."""
    broker_admin.rabbitmqctl("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")


@pytest.fixture
def invariants(broker_admin: BrokerAdmin, fast_queue_stats: None, request: pytest.FixtureRequest) -> InvariantChecker:
    return invariant_checker(broker_admin, request.config)


@pytest.fixture
def stopped_fleet(breakable_broker: BrokerUnderTest, fast_queue_stats: None) -> Iterator[ProcessFleet]:
    """A fleet of which nothing runs yet."""
    with process_fleet(breakable_broker.url, CONFIG, targets=["bot"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        yield fleet


@pytest.fixture
def fleet(stopped_fleet: ProcessFleet) -> ProcessFleet:
    """One metadata service and two workers."""
    stopped_fleet.start_services("metadata", "worker", "worker")
    return stopped_fleet
