"""The token file of a run's session, and what the run's sessions were charged, so that the next command goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quintain.contracts.credentials import SessionToken
from quintain_runner.files import atomic_write


@dataclass(frozen=True, slots=True)
class StoredSession:
    """The contents of the token file: a token, numbers of calls, and amounts in US dollars.

    ``earlier_calls`` were charged to other sessions of the run before, and ``own_calls`` to this session when they were
    last counted. ``earlier_cost_usd`` is what other sessions of the run cost at most, and ``own_cost_usd`` this one:
    its limit until that is counted. ``max_cost_usd`` is the run's limit; None where it has none.
    """

    token: str
    earlier_calls: int = 0
    own_calls: int = 0
    earlier_cost_usd: float = 0.0
    own_cost_usd: float = 0.0
    max_cost_usd: float | None = None

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return SessionToken.parse(self.token).id

    def followed_by(self, token: str, own_calls: int) -> StoredSession:
        """What is stored of the next session; ``own_calls`` were charged to this one."""
        return StoredSession(
            token,
            self.earlier_calls + own_calls,
            earlier_cost_usd=self.earlier_cost_usd + self.own_cost_usd,
            max_cost_usd=self.max_cost_usd,
        )


def read_stored_session(path: Path) -> StoredSession | None:
    """Return what the token file says; None where there is none."""
    fields = path.read_text().split() if path.is_file() else []
    if not fields:
        return None
    calls, costs, limit = map(int, fields[1:3]), map(float, fields[3:5]), "".join(fields[5:6])
    return replace(StoredSession(fields[0], *calls, *costs), max_cost_usd=float(limit) if limit else None)


def write_stored_session(path: Path, stored: StoredSession) -> None:
    """Write the token file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = (stored.earlier_calls, stored.own_calls)
    limit = () if stored.max_cost_usd is None else (stored.max_cost_usd,)
    fields = (stored.token, *numbers, stored.earlier_cost_usd, stored.own_cost_usd, *limit)
    with atomic_write(path) as file:
        file.write(f"{' '.join(map(str, fields))}\n".encode())
