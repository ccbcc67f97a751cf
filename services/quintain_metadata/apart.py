"""What the metadata service's own process says to whoever started it: one line, when it answers or why it does not."""

from __future__ import annotations

from typing import Self

from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse, QuintainError

#: What is wrong where a ledger cannot be opened, by its name on the line; what is more special comes first.
_ERRORS: dict[str, type[QuintainError]] = {
    error.__name__: error for error in (BudgetUnavailable, LedgerInUse, ConfigError)
}


class Word(Message):
    """It answers where there is no ``error``."""

    error: str | None = None
    message: str | None = None

    @classmethod
    def of(cls, error: QuintainError) -> Self:
        """The word of one that could not open its ledger."""
        kind = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "")
        return cls(error=kind, message=error.message)

    def raised(self) -> QuintainError | None:
        """The error, where there is one."""
        return None if self.error is None else _ERRORS.get(self.error, QuintainError)(self.message)
