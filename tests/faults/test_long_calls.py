"""A call of minutes outlives its worker and its broker; `test_soak_providers.py` has one of 40 minutes."""

from __future__ import annotations

import pytest

from faults.load import is_long
from faults.long_call import LongCall, outlive, short_consumer_timeout
from support.process_fleet import ProcessFleet
from support.servers.rabbitmq_admin import BrokerAdmin

#: The third and the fourth minute of a call of five; and the same, shrunk.
LONG_CALL = LongCall(60, 300, 150, 210) if is_long() else LongCall(10, 14, 5, 20.5)


@pytest.mark.timeout(900)
async def test_a_call_outlives_its_worker_and_the_broker_and_is_charged_and_answered_once(
    stopped_fleet: ProcessFleet, broker_admin: BrokerAdmin
) -> None:
    with short_consumer_timeout(stopped_fleet, broker_admin, LONG_CALL):
        await outlive(stopped_fleet, broker_admin, LONG_CALL)
