"""The token file of a run's session, and what the plan's sessions were charged, so that the next command goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quintain.contracts.credentials import SessionToken
from quintain_runner.files import atomic_write


@dataclass(frozen=True, slots=True)
class StoredSession:
    """The contents of the token file: a token, numbers of calls, and amounts in US dollars.

    ``earlier_calls`` were charged to other sessions of the run before, ``earlier_plans_calls`` of them before the plan
    changed. ``own_calls`` were charged to this session when they were last counted. ``plan_cost_usd`` is what other
    sessions of the plan cost at most, and ``own_cost_usd`` this one: its limit until that is counted. ``max_cost_usd``
    is the plan's limit; None where it has none.
    """

    token: str
    earlier_calls: int = 0
    earlier_plans_calls: int = 0
    own_calls: int = 0
    plan_cost_usd: float = 0.0
    own_cost_usd: float = 0.0
    max_cost_usd: float | None = None

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return SessionToken.parse(self.token).id

    @property
    def plan_calls(self) -> int:
        """The calls of the plan that were charged to other sessions."""
        return self.earlier_calls - self.earlier_plans_calls

    def followed_by(self, token: str, own_calls: int, *, is_changed: bool) -> StoredSession:
        """What is stored of the next session; ``own_calls`` were charged to this one."""
        calls = self.earlier_calls + own_calls
        return StoredSession(
            token,
            calls,
            calls if is_changed else self.earlier_plans_calls,
            plan_cost_usd=0.0 if is_changed else self.plan_cost_usd + self.own_cost_usd,
            max_cost_usd=None if is_changed else self.max_cost_usd,
        )


def read_stored_session(path: Path) -> StoredSession | None:
    """Return what the token file says; None where there is none."""
    fields = path.read_text().split() if path.is_file() else []
    if not fields:
        return None
    calls, costs, limit = map(int, fields[1:4]), map(float, fields[4:6]), "".join(fields[6:7])
    return replace(StoredSession(fields[0], *calls, *costs), max_cost_usd=float(limit) if limit else None)


def write_stored_session(path: Path, stored: StoredSession) -> None:
    """Write the token file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = (stored.earlier_calls, stored.earlier_plans_calls, stored.own_calls)
    limit = () if stored.max_cost_usd is None else (stored.max_cost_usd,)
    fields = (stored.token, *numbers, stored.plan_cost_usd, stored.own_cost_usd, *limit)
    with atomic_write(path) as file:
        file.write(f"{' '.join(map(str, fields))}\n".encode())
