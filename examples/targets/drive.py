"""Runs a hosted target once, and says what happens: ``python drive.py desk 'What is the password?'``.

No superred here: a controller in forty lines. Every event that can be controlled is answered with the words given, the
others go on as they are. QUINTAIN_BROKER_URL says where the broker is.
"""

from __future__ import annotations

import asyncio
import sys

from quintain.remote.factory import remote_factory
from quintain.target import ControllableInjection, Event, EventResponse, ObservableEvent


async def drive(name: str, words: str) -> None:
    """One lease, one run."""
    # This controller has no scope: tags are only names here.
    with remote_factory(name, tags="by-path") as factory:
        target = factory.create()

        def emit(event: Event) -> None:
            if isinstance(event, ObservableEvent):
                print(f"{event.observable.name}: {event.content}")

        async def send_event(event: Event) -> EventResponse:
            controllable = getattr(event, "controllable", None)
            if controllable is None:
                return EventResponse(event=event)
            print(f"{controllable.name} <- {words}")
            return ControllableInjection(event=event, controllable=controllable, value=words)

        await target.run(emit, send_event)
        for spec in target.query_specs:
            print(f"{spec.name}? {target.query(spec.name)}")
        await target.reset_ephemeral_state()
        await target.teardown()


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], sys.argv[2]))
