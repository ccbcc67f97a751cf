"""One choice's text as it is passed on, piece by piece, whatever becomes of the pieces on their way. Pure."""

from __future__ import annotations

from quintain.contracts.invoke import Chunk, Result
from quintain.errors import ProviderFailed


class Assembly:
    """What was passed on of one answer, and what still may be.

    A later attempt begins the answer again. What was passed on cannot be taken back: a later attempt that repeats it
    goes on from there, and one that differs, or of which a piece was lost, is waited for to its end. The result then
    shows whether it begins with the same words.
    """

    def __init__(self) -> None:
        self._passed: list[str] = []
        self._attempt = self._seq = 0
        #: What was passed on and this attempt has not repeated yet.
        self._owed = ""
        self._waits = False

    @property
    def begun(self) -> bool:
        """Whether anything was passed on."""
        return bool(self._passed)

    def piece(self, chunk: Chunk) -> str:
        """What of this piece is to be passed on, often all of it."""
        if chunk.attempt > self._attempt:
            self._attempt, self._seq = chunk.attempt, 0
            self._owed, self._waits = "".join(self._passed), False
        if chunk.attempt < self._attempt or chunk.seq < self._seq or self._waits:
            return ""  # void, or a repeat
        repeated = min(len(self._owed), len(chunk.delta))
        if chunk.seq > self._seq or not self._owed.startswith(chunk.delta[:repeated]):
            self._waits = True
            return ""
        self._seq += 1
        self._owed = self._owed[repeated:]
        return self._pass(chunk.delta[repeated:])

    def rest(self, result: Result) -> str:
        """What is still to be passed on at the end. Raises `ProviderFailed` where the answer is another one than was
        begun."""
        passed = "".join(self._passed)
        if not result.raw_text.startswith(passed):
            raise ProviderFailed(
                "The answer was begun again by a later attempt and differs: ask again under the same Idempotency-Key "
                "without stream, and the whole answer comes without another charge",
                charged=True,
            )
        return self._pass(result.raw_text[len(passed) :])

    def _pass(self, text: str) -> str:
        if text:
            self._passed.append(text)
        return text
