"""What a caller hears before the final answer, where it asks for it: pieces of the answer, and that the call runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from quintain.bus.base import Delivery
from quintain.contracts.invoke import Chunk, Progress
from quintain.errors import BadRequest
from quintain.routes import ACCEPT_CHUNKS, ACCEPT_PROGRESS, CHUNK_TYPE, PROGRESS_TYPE

#: Who hears the pieces of an answer as they come.
Heard = Callable[[Chunk], None]

#: Who hears that a call still runs.
HeardProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Ears:
    """Who hears what; nobody hears what was not asked for."""

    heard: Heard | None = None
    progress: HeardProgress | None = None

    @property
    def accepts(self) -> str:
        """What the request asks for, as its header says it."""
        asked = {ACCEPT_CHUNKS: self.heard, ACCEPT_PROGRESS: self.progress}
        return ", ".join(name for name, ear in asked.items() if ear is not None)

    def hear(self, delivery: Delivery) -> None:
        """Take in a message before the final one. What nobody can read is missing, and the whole answer follows."""
        with contextlib.suppress(BadRequest):
            if delivery.type == CHUNK_TYPE and self.heard is not None:
                self.heard(Chunk.from_wire(delivery.body))
            elif delivery.type == PROGRESS_TYPE and self.progress is not None:
                self.progress(Progress.from_wire(delivery.body))


DEAF = Ears()
