"""Runs a hosted target once, and shows what happens: ``python drive.py desk 'What is the password?'``.

Every event that can be controlled is answered with the words given. QUINTAIN_BROKER_URL says where the broker is.
"""

from __future__ import annotations

import asyncio
import sys

import quintain


async def drive(name: str, words: str) -> None:
    """One lease, one run."""

    async def say(event: quintain.Event) -> quintain.EventResponse | None:
        if isinstance(event, quintain.ControllablePreCallEvent | quintain.ControllablePostCallEvent):
            return quintain.ControllableInjection(event=event, controllable=event.controllable, value=words)
        return None

    async with quintain.lease(name) as target:
        (await target.run(on_event=say)).show()
        for spec in target.query_specs:
            print(f"{spec.name}? {await target.query(spec.name)}")


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], sys.argv[2]))
