"""The target that `targets.py` measures: it sends, emits, waits or burns for so long, and says how long each send took.

It speaks superred where superred is installed, so that superred's own channel can be measured beside; else ours.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from typing import Any

try:
    core: Any = importlib.import_module("superred.core")
except ImportError:
    core = importlib.import_module("quintain.target")

USER = core.SecurityDomainTag("user")
POINT = core.Controllable("point", USER)
SEEN = core.Observable("seen", USER)

#: What one `burn` is: about thirty milliseconds of Python that never lets the GIL go by itself.
BURN_ROUNDS = 600_000


class Bench(core.Target):  # type: ignore[misc]
    """``mode`` is what a run does, and ``amount`` how much: seconds of sends or of waiting, emits in all, or rounds of
    burning, with a send after each ``step`` of them."""

    def __init__(self) -> None:
        self._config = {"mode": "send", "in_flight": "1", "amount": "1", "step": "1"}
        self._took_ms: list[float] = []

    @property
    def config_specs(self) -> list[Any]:
        return [core.ConfigSpec(name, USER, "text") for name in self._config]

    def set_config(self, name: str, value: str) -> None:
        self._config[name] = value

    @property
    def query_specs(self) -> list[Any]:
        return [core.QuerySpec("took", "how long each send took, in milliseconds, as JSON")]

    def query(self, name: str, **params: str) -> str:
        return json.dumps([round(each, 3) for each in self._took_ms])

    @property
    def security_domain(self) -> Any:
        return core.SecurityDomain([USER])

    def get_controllables(self) -> list[Any]:
        return [POINT]

    def get_observables(self) -> list[Any]:
        return []

    async def run(self, emit: Any, send_event: Any) -> None:
        amount = float(self._config["amount"])
        if self._config["mode"] == "emit":
            for number in range(int(amount)):
                emit(core.ObservableEvent(observable=SEEN, content=number))
        elif self._config["mode"] == "burn":
            step = int(self._config["step"])
            for _ in range(0, int(amount), step):
                burn_rounds(step)
                await self._send(send_event)
        elif self._config["mode"] == "wait":
            await asyncio.sleep(amount)
        else:
            ends = time.perf_counter() + amount
            await asyncio.gather(*(self._send_until(ends, send_event) for _ in range(int(self._config["in_flight"]))))

    async def _send_until(self, ends: float, send_event: Any) -> None:
        while time.perf_counter() < ends:
            await self._send(send_event)

    async def _send(self, send_event: Any) -> None:
        began = time.perf_counter()
        await send_event(core.ControllablePreCallEvent(controllable=POINT, request="How are you?"))
        self._took_ms.append((time.perf_counter() - began) * 1000)

    async def reset_ephemeral_state(self) -> None:
        self._took_ms.clear()

    async def teardown(self) -> None:
        pass


def burn() -> int:
    """Keep one core busy."""
    total = 0
    for number in range(BURN_ROUNDS):
        total += number * number
    return total


def burn_rounds(count: int) -> None:
    """Keep one core busy for so many rounds."""
    for _ in range(count):
        burn()
