"""The short form and the long one, the fixtures of every scenario, and the table of all faults at the end.

``QUINTAIN_TEST_FAULTS=long`` (`make faults`) runs everything at full length but what is marked ``very_long``, and
``all`` that too; otherwise fewer calls are sent. What is marked and left out is deselected, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.invariants import REPORTS, InvariantChecker, invariant_checker
from faults.load import Load, faults_form, is_long
from faults.scenario import BOT, MAX_CONCURRENCY, config_with_limit, format_table
from quintain.settings import environment
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq import RABBITMQ
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest

_DESELECTED = pytest.StashKey[int]()

LONG_CALLS, SHORT_CALLS = 120, 40

#: How long one scenario may take, where other programs have the cores too: at full length, load alone goes on for 60 s.
SCENARIO_SECONDS = 600 if is_long() else 300


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SCENARIO_SECONDS))
    left_out = {"short": ("long", "very_long"), "long": ("very_long",), "all": ()}[faults_form()]
    deselected = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.stash[_DESELECTED] = len(deselected)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    endings = config.stash.get(REPORTS, [])
    if endings:
        form = "long" if is_long() else f"short: {config.stash.get(_DESELECTED, 0)} scenarios are left to `make faults`"
        summary = config.pluginmanager.getplugin("quintain-summary")
        summary.add("faults", *format_table(endings), f"{len(endings)} scenarios, the {form}")


@pytest.fixture(scope="session")
def rabbitmq_server() -> Path:
    """This machine's rabbitmq-server, for nodes that may be killed or filled; whatever broker the other tests take."""
    env = environment()
    if env.get("QUINTAIN_TEST_BROKER") != "server" and RABBITMQ.packages.find(env) is None:
        pytest.skip("no rabbitmq-server here for nodes of their own: QUINTAIN_TEST_BROKER=server installs one")
    return RABBITMQ.packages.find_or_install(env, print)


@pytest.fixture
def questions() -> list[str]:
    """What a scenario asks; each question is its own request id."""
    return [f"q{number}" for number in range(LONG_CALLS if is_long() else SHORT_CALLS)]


@pytest.fixture(scope="session")
def fast_queue_stats(broker_admin: BrokerAdmin) -> None:
    """Quorum queues tell how many messages they have ten times as often as by default."""
    broker_admin.evaluate("application:set_env(rabbit, quorum_tick_interval, 500)")


@pytest.fixture
def invariants(broker_admin: BrokerAdmin, fast_queue_stats: None, request: pytest.FixtureRequest) -> InvariantChecker:
    return invariant_checker(broker_admin, request.config)


@pytest.fixture
def load() -> Load | None:
    """No load that goes on, where a test is not parametrized with one."""
    return None


@pytest.fixture
def stopped_fleet(
    breakable_broker: BrokerUnderTest, fast_queue_stats: None, load: Load | None
) -> Iterator[ProcessFleet]:
    """A fleet of which nothing runs yet."""
    config = config_with_limit(load.limit if load else MAX_CONCURRENCY)
    with process_fleet(breakable_broker.url, config, targets=["bot"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.extra_env |= {"TEST_BOT_SECONDS": "0.3"} if load else {}
        yield fleet


@pytest.fixture
def fleet(stopped_fleet: ProcessFleet) -> ProcessFleet:
    """One metadata service and two workers."""
    stopped_fleet.start_services("metadata", "worker", "worker")
    return stopped_fleet
