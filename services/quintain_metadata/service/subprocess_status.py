"""The line that the metadata service's own process prints for its parent: that it answers, or why it cannot start."""

from __future__ import annotations

from typing import Self

from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, ConfigError, LedgerInUse, QuintainError

#: What is wrong where a ledger cannot be opened, by its name on the line; what is more special comes first.
_ERRORS_BY_NAME: dict[str, type[QuintainError]] = {
    error.__name__: error for error in (BudgetUnavailable, LedgerInUse, ConfigError)
}


class StartupStatus(Message):
    """It answers where there is no ``error``."""

    error: str | None = None
    message: str | None = None

    @classmethod
    def from_error(cls, error: QuintainError) -> Self:
        """The word of one that could not open its ledger."""
        error_name = next((name for name, kind in _ERRORS_BY_NAME.items() if isinstance(error, kind)), "")
        return cls(error=error_name, message=error.message)

    def to_error(self) -> QuintainError | None:
        """The error, where there is one."""
        return None if self.error is None else _ERRORS_BY_NAME.get(self.error, QuintainError)(self.message)
