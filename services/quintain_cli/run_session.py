"""A run's own session: opened once, kept beside its results, so that a resumed run draws on the same budget."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from quintain.client.admin import Admin
from quintain.client.client import Client
from quintain.clock import Clock
from quintain.contracts.metadata import AmendSession, Info, OpenSession, SessionOpened
from quintain.errors import ConfigError, Unauthorized
from quintain_cli.screen import tell
from quintain_cli.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """The run's right to call. ``kept_in`` holds its token, for this user alone."""

    default_target: str
    max_calls: int
    label: str
    kept_in: Path


@contextlib.asynccontextmanager
async def run_client(ground: Standing, budget: RunBudget) -> AsyncIterator[Client]:
    """The client of the run's session: the kept one where it still opens, a new one otherwise."""
    clock = Clock()
    kept = await _kept(ground, budget, clock)
    if kept is None:
        opened = await _open(ground, budget)
        _keep(budget.kept_in, opened.token)
        kept = Client(ground.caller, clock, opened.token)
        clock.learn((await kept.get_info()).now)
    yield kept


async def _kept(ground: Standing, budget: RunBudget, clock: Clock) -> Client | None:
    if not budget.kept_in.is_file():
        return None
    client = Client(ground.caller, clock, budget.kept_in.read_text().strip())
    try:
        info = await client.get_info()
    except Unauthorized:
        tell("budget   the session of before is closed or expired; this run goes on under a new one")
        return None
    clock.learn(info.now)
    if info.max_calls != budget.max_calls:
        await _amend(ground, budget, info)
    return client


async def _amend(ground: Standing, budget: RunBudget, info: Info) -> None:
    if ground.admin_token is None:
        raise ConfigError(
            f"This run's budget is {info.max_calls} calls, and {budget.max_calls} are asked for: only "
            "QUINTAIN_ADMIN_TOKEN may change it"
        )
    ask = AmendSession(session_id=info.session_id, max_calls=budget.max_calls)
    await Admin(ground.caller, ground.admin_token).amend(ask)


async def _open(ground: Standing, budget: RunBudget) -> SessionOpened:
    ask = OpenSession(default_target=budget.default_target, max_calls=budget.max_calls, label=budget.label)
    if ground.admin_token is not None:
        return await Admin(ground.caller, ground.admin_token).open(ask)
    if ground.parent_token is not None:
        return await Client(ground.caller, Clock(), ground.parent_token).open_child(ask)
    raise ConfigError(
        "A run on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or QUINTAIN_SESSION_TOKEN to draw "
        "on yours"
    )


def _keep(path: Path, token: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(f"{token}\n")
