"""A run's own session: opened once, kept beside its results, so that a resumed run draws on the same budget."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from quintain.client.evaluator import Administrator, Evaluator
from quintain.contracts.metadata import AmendSession, Info, OpenSession, SessionOpened
from quintain.errors import ConfigError, Unauthorized
from quintain_cli.screen import tell
from quintain_cli.standing import Standing
from quintain_runner import replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """The run's right to call. ``is_named``: somebody chose the number; another one is raised as it takes.

    ``kept_in`` holds the session's token, for this user alone.
    ``count_spent`` counts what the results of before were charged: asked where their session is gone.
    """

    default_target: str
    max_calls: int
    is_named: bool
    label: str
    kept_in: Path
    count_spent: Callable[[], int]


@dataclass(frozen=True, slots=True)
class RunSession:
    """The client of the run's session, and what sessions of before it were charged in the run's name."""

    client: Evaluator
    spent_before: int
    admin: Administrator | None

    async def raise_budget(self, max_calls: int) -> None:
        """Let the session make so many calls; nothing where nobody here may say so: then the run parks."""
        if self.admin is not None:
            session_id = (await self.client.get_info()).session_id
            await self.admin.amend(AmendSession(session_id=session_id, max_calls=max_calls))


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the file holds: a token, and what was spent before it."""

    token: str
    spent_before: int


@contextlib.asynccontextmanager
async def run_session(ground: Standing, budget: RunBudget) -> AsyncIterator[RunSession]:
    """The run's session: the kept one where it still opens, a new one otherwise, with what is left of the budget."""
    async with contextlib.AsyncExitStack() as stack:
        kept, client = _read(budget.kept_in), None
        if kept is not None:
            client = await _taken_up(ground, budget, kept, stack)
        if kept is None or client is None:
            spent = 0 if kept is None else budget.count_spent()
            opened = await _open(ground, budget, max(0, budget.max_calls - spent))
            kept = _Kept(opened.token, spent)
            _keep(budget.kept_in, kept)
            client = await stack.enter_async_context(ground.open(kept.token))
        yield RunSession(client, kept.spent_before, ground.admin)


async def _taken_up(
    ground: Standing, budget: RunBudget, kept: _Kept, stack: contextlib.AsyncExitStack
) -> Evaluator | None:
    try:
        client = await stack.enter_async_context(ground.open(kept.token))
        info = await client.get_info()
    except Unauthorized:
        tell("budget   the session of before is closed or expired; this run goes on under a new one, with what is left")
        return None
    if budget.is_named and info.max_calls != max(0, budget.max_calls - kept.spent_before):
        await _amend(ground, budget, kept, info)
    return client


async def _amend(ground: Standing, budget: RunBudget, kept: _Kept, info: Info) -> None:
    if ground.admin is None:
        raise ConfigError(
            f"This run's budget is {info.max_calls + kept.spent_before} calls, and {budget.max_calls} are asked for: "
            "only QUINTAIN_ADMIN_TOKEN may change it"
        )
    limit = max(0, budget.max_calls - kept.spent_before)
    await ground.admin.amend(AmendSession(session_id=info.session_id, max_calls=limit))


async def _open(ground: Standing, budget: RunBudget, max_calls: int) -> SessionOpened:
    ask = OpenSession(default_target=budget.default_target, max_calls=max_calls, label=budget.label)
    if ground.admin is not None:
        return await ground.admin.open(ask)
    if ground.parent_token is not None:
        async with ground.open(ground.parent_token) as parent:
            return await parent.open_child(ask)
    raise ConfigError(
        "A run on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or QUINTAIN_SESSION_TOKEN to draw "
        "on yours"
    )


def _read(path: Path) -> _Kept | None:
    words = path.read_text().split() if path.is_file() else []
    if not words:
        return None
    return _Kept(words[0], int(words[1]) if len(words) > 1 else 0)


def _keep(path: Path, kept: _Kept) -> None:
    """Kept before the first call is made under it: whatever happens then, the run goes on in this session."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=0o600) as file:
        file.write(f"{kept.token} {kept.spent_before}\n".encode())
