"""The line of JSON that the metadata subprocess prints for its parent: that it is ready, or why it cannot start."""

from __future__ import annotations

from typing import Self

from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse, QuintainError

#: The errors that a start may end with, by their name on the line; subclasses come before their base class.
_ERRORS_BY_NAME: dict[str, type[QuintainError]] = {
    error.__name__: error for error in (BudgetUnavailable, LedgerInUse, ConfigError)
}


class StartupStatus(Message):
    """The subprocess is ready where ``error`` is None."""

    error: str | None = None
    message: str | None = None

    @classmethod
    def from_error(cls, error: QuintainError) -> Self:
        """Create the status of a process that could not open its ledger."""
        error_name = next((name for name, kind in _ERRORS_BY_NAME.items() if isinstance(error, kind)), "")
        return cls(error=error_name, message=error.message)

    def to_error(self) -> QuintainError | None:
        """Return the error to raise in the parent, or None."""
        return None if self.error is None else _ERRORS_BY_NAME.get(self.error, QuintainError)(self.message)
