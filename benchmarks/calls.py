"""The rows of the benchmark over AMQP: Quintain with budgets and a ledger on disk, beside a bare aio-pika loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from harness import Fleet, Result, Side, compare, listening_process, process, running_fleet
from quintain.contracts.invoke import InvokeRequest
from raw_rpc import raw_rpc_client

HERE = Path(__file__).parent
QUESTION = "How are you?"
BODY = b'{"question": "How are you?"}'


@dataclass(frozen=True, slots=True)
class Options:
    """Where the broker is, how long a round takes in seconds, and how many rounds there are."""

    url: str
    folder: Path
    seconds: float
    rounds: int

    @property
    def broker_pid(self) -> dict[str, int]:
        """The broker's process, if it is on this machine."""
        return listening_process(int(self.url.rpartition("@")[2].partition(":")[2].partition("/")[0]))


@contextlib.asynccontextmanager
async def bare_loop(
    options: Options, name: str = "bare loop", body: bytes = BODY, delay: float = 0, servers: int = 1
) -> AsyncIterator[Side]:
    """The reference of every table: request and reply over plain aio-pika."""
    with contextlib.ExitStack() as stack:
        words = [str(HERE / "raw_rpc.py"), options.url, str(delay)]
        pids = {f"server {number}": stack.enter_context(process(words, "ready")) for number in range(servers)}
        async with raw_rpc_client(options.url) as raw:
            yield Side(name=name, call=lambda: raw(body), processes={**pids, **options.broker_pid})


def sdk_side(name: str, fleet: Fleet, client: object, **request: str) -> Side:
    """Calls of the SDK, one message each."""
    asked = InvokeRequest.model_validate({"question": QUESTION, **request})
    return Side(name=name, call=lambda: client.send(asked), processes=fleet.pids)  # type: ignore[attr-defined]


async def in_flight(options: Options, levels: tuple[int, ...] = (1, 10, 100, 1000)) -> list[Result]:
    """One call after another at so many callers: with and without a target, from the SDK and a plain client."""
    results = []
    with running_fleet(options.url, options.folder, broker_pid=options.broker_pid) as fleet:
        token = (await fleet.open_session()).token
        async with (
            bare_loop(options) as bare,
            fleet.client() as client,
            raw_rpc_client(options.url, token) as plain,
        ):
            sides = [
                bare,
                sdk_side("SDK, target named", fleet, client, target="bench"),
                sdk_side("SDK, no target", fleet, client),
                Side(name="plain client, no target", call=lambda: plain(BODY), processes=fleet.pids),
            ]
            for level in levels:
                results += await compare("calls in flight", str(level), sides, level, options.seconds, options.rounds)
    return results
