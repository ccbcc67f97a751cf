"""The ledger's promise to the service, whatever store keeps it: each operation is one transaction, answered
only after it is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from quintain_metadata.records import Moment
from quintain_metadata.steps import Steps

Returned = TypeVar("Returned")

#: An operation, given the moment on the store's clock at which it happens.
Operation = Callable[[Moment], Steps[Returned]]


def returned(outcome: Returned | Exception) -> Returned:
    """What an operation returned; raises what undid it."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Ledger(Protocol):
    """Runs operations. An operation's exception undoes it, and only it."""

    @property
    def kind(self) -> str:
        """What keeps it, in one word; never where."""

    async def do(self, operation: Operation[Returned]) -> Returned:
        """Run one operation; returns after its commit. Raises `BudgetUnavailable` where the store cannot."""

    async def do_each(self, operations: Sequence[Operation[Returned]]) -> list[Returned | Exception]:
        """Run several, each for itself: what each returned, or the exception that undid it, in their order. Raises
        `BudgetUnavailable` only where that is everybody's."""

    def mourn_from(self, moment_ms: int) -> None:
        """Take nobody's lease for lapsed before this moment."""

    async def now(self) -> int:
        """The store's clock: milliseconds since the epoch."""

    async def close(self) -> None:
        """Finish what was asked, and let go."""
