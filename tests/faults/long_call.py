"""A call that lasts longer than the broker lets a message be unacknowledged, whose worker and whose broker die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from faults.ledger_calls import read_calls
from quintain.contracts.invoke import InvokeRequest
from quintain_metadata.ledger.lifecycle import CallState
from support.process_fleet import ProcessFleet
from support.quick import lease_variable
from support.recording_bus import recording_client
from support.servers.rabbitmq_admin import BrokerAdmin

#: Says which worker runs it, and takes its time.
BOT = """
import asyncio, os, pathlib, secrets

async def answer(request):
    with pathlib.Path(__file__).with_name("runs").open("a") as runs:
        runs.write(f"{os.getppid()}\\n")
    await asyncio.sleep(float(os.environ["TEST_BOT_SECONDS"]))
    return secrets.token_hex(4)
"""


@dataclass(frozen=True)
class LongCall:
    """How long things take, in seconds: from the call's begin to the death of its worker, and of the broker.

    From RabbitMQ 3.12 on the queue's own timeout is in force, and not this one.
    """

    consumer_timeout: float
    call: float
    worker_dies: float
    broker_dies: float


def set_consumer_timeout(admin: BrokerAdmin, seconds: float, *, tick_seconds: float) -> None:
    """Set after how long the broker closes a channel, and how often it looks."""
    admin.evaluate(
        f"application:set_env(rabbit, consumer_timeout, {int(seconds * 1000)}),"
        f"application:set_env(rabbit, channel_tick_interval, {int(tick_seconds * 1000)})"
    )


@contextlib.contextmanager
def short_consumer_timeout(fleet: ProcessFleet, admin: BrokerAdmin, form: LongCall) -> Iterator[None]:
    """Prepare a fleet of which nothing runs yet, at a broker with this consumer timeout."""
    (fleet.folder / "bot.py").write_text(BOT)
    fleet.extra_env |= lease_variable() | {"TEST_BOT_SECONDS": str(form.call)}
    set_consumer_timeout(admin, form.consumer_timeout, tick_seconds=1)
    try:
        yield
    finally:
        set_consumer_timeout(admin, 1800, tick_seconds=60)


def runs(fleet: ProcessFleet) -> list[int]:
    """The workers that have run the call, in order."""
    path = fleet.folder / "runs"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


async def outlive(fleet: ProcessFleet, broker_admin: BrokerAdmin, form: LongCall) -> None:
    """Send the call, let its worker and the broker die, and assert that it is taken over, charged and answered once."""
    fleet.start_services("metadata", "worker", "worker")
    session = fleet.open_session("bot", 5)
    async with recording_client(fleet.broker_url, session.token) as recording:
        request = InvokeRequest(question="how long?", target="bot")
        seconds = form.worker_dies + form.call + 3600
        call = asyncio.create_task(recording.client.send(request, request_id="r", deadline_seconds=seconds))
        async with asyncio.timeout(30):
            while not runs(fleet):
                await asyncio.sleep(0.1)
        await asyncio.sleep(form.worker_dies)
        assert len(runs(fleet)) == 1
        os.kill(runs(fleet)[0], signal.SIGKILL)
        await asyncio.sleep(form.broker_dies - form.worker_dies)
        await asyncio.to_thread(broker_admin.stop_app)
        await asyncio.to_thread(broker_admin.start_app)
        await asyncio.to_thread(set_consumer_timeout, broker_admin, form.consumer_timeout, tick_seconds=1)
        result = await call
        info = await recording.client.get_info()
        # Another worker that waits with the message has the time to answer it.
        await asyncio.sleep(2)
        assert set(recording.reply_texts["r"]) == {result.raw_text}
    assert len(runs(fleet)) == len(set(runs(fleet))) == 2
    assert result.attempts == 2
    assert (info.call_count, info.committed, info.in_doubt) == (1, 1, 0)
    ledger_call = (await read_calls(fleet.ledger_url, session.session_id))["r"]
    assert (ledger_call.state, ledger_call.granted_attempts) == (CallState.COMMITTED, 2)
