"""Asking each target once, before a run: does it answer, how long does it take, and what does that cost?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass

from quintain.client.evaluator import Evaluator
from quintain.config import Config
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.metadata import AmendSession, OpenSession, SessionState
from quintain.errors import ConfigError, Fault
from quintain.settings import Settings
from quintain_cli.run_ground import embedded_plan, is_on_fleet
from quintain_cli.standing import standing
from quintain_metadata import IN_MEMORY
from quintain_runner import DatasetFacts, Evaluation, Price, price_of, read_cases

#: How long a probe may take, in seconds.
PROBE_SECONDS = 120.0


class Probe(Message):
    """What came of one call: an answer, or an error. ``usd`` is None where the price is not known."""

    target: str
    seconds: float
    error: str | None = None
    charged: bool = True
    token_usage: TokenUsage | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Probing:
    """What is probed: each of these targets, with the first case that counts."""

    evaluation: Evaluation
    config: Config | None
    facts: DatasetFacts
    targets: tuple[str, ...]


async def probe_targets(probing: Probing, settings: Settings) -> list[Probe]:
    """Ask each target once, all at the same time. Raises `ConfigError` where there is no right to, and what the bus
    raises where there is no fleet."""
    with closing(read_cases(probing.facts.source)) as cases:
        case = next(cases)
    ask = InvokeRequest(question=case.question, messages=case.messages, system_prompt=case.system_prompt)
    async with _session(probing, settings) as session:
        known = (await session.get_info()).available_targets
        wanted = [_probe(probing, session, ask, target, known) for target in probing.targets]
        return list(await asyncio.gather(*wanted))


async def _probe(probing: Probing, session: Evaluator, ask: InvokeRequest, target: str, known: list[str]) -> Probe:
    began = time.monotonic()
    if target not in known:
        # A target that nobody serves would only be waited for.
        error = f"no worker serves it; served are: {', '.join(known) or 'none'}"
        return Probe(target=target, seconds=0, error=error, charged=False)
    try:
        result = await session.send(ask.model_copy(update={"target": target}), deadline_seconds=PROBE_SECONDS)
    except Fault as fault:
        took = time.monotonic() - began
        return Probe(target=target, seconds=took, error=f"{fault.code}: {fault.message}", charged=fault.charged)
    price = _price(probing, target)
    usage = result.token_usage
    cost = None if price is None or usage is None else float(price.of(usage))
    return Probe(target=target, seconds=time.monotonic() - began, token_usage=usage, usd=cost)


def _price(probing: Probing, target: str) -> Price | None:
    config = probing.config
    return None if config is None or target not in config.targets else price_of(config.targets[target])


@contextlib.asynccontextmanager
async def _session(probing: Probing, settings: Settings) -> AsyncIterator[Evaluator]:
    """A session with a call for each target, closed at the end where its opener may."""
    plan = None
    if probing.config is not None and not is_on_fleet(settings):
        plan = embedded_plan(settings, probing.config, IN_MEMORY)
    ask = OpenSession(
        default_target=probing.targets[0],
        max_calls=len(probing.targets),
        label=f"check {probing.evaluation.name}"[:200],
        expires_in_seconds=10 * PROBE_SECONDS,
    )
    async with standing(settings, plan) as ground:
        if ground.admin is not None:
            opened = await ground.admin.open(ask)
        elif ground.parent_token is not None:
            async with ground.open(ground.parent_token) as parent:
                opened = await parent.open_child(ask)
        else:
            raise ConfigError(
                "A probe on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or QUINTAIN_SESSION_TOKEN "
                "to draw on yours"
            )
        async with ground.open(opened.token) as session:
            yield session
        if ground.admin is not None:
            await ground.admin.amend(AmendSession(session_id=opened.session_id, state=SessionState.CLOSED))
