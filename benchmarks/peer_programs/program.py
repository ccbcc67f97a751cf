"""What the programs of all peers share: their words and what is asked of them.

Each is ``python -m peer_programs.NAME server|client URL DELAY STORE``, with this folder's parent on the import path.
The server answers every question with a few words, after so many seconds, and says when it is ready. STORE is the
address of a PostgreSQL database.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

QUESTION, ANSWER = "How are you?", "fine"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The broker's address, how long a call takes in seconds, and the address of a database."""

    url: str
    delay: float
    store: str


async def answer_after(delay: float) -> str:
    """The provider: it answers at once, or after a while."""
    if delay:
        await asyncio.sleep(delay)
    return ANSWER


def run(roles: dict[str, Callable[[Arguments], Coroutine[None, None, None] | None]]) -> None:
    """Be the server or the client that the command line names."""
    role, url, delay, store = sys.argv[1:]
    running = roles[role](Arguments(url, float(delay), store))
    if running is not None:
        asyncio.run(running)
