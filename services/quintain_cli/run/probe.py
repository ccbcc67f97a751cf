"""Probes each target with one call before a run: whether it answers, how long it takes and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass

from quintain.client.client import Client
from quintain.config import Config
from quintain.config.prices import Price, target_price
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.message import Message
from quintain.contracts.session import AmendSession, OpenSession, SessionState
from quintain.errors import ConfigError, Fault
from quintain.settings import Settings
from quintain_cli.run.backend import connect_backend, embedded_fleet_plan, is_on_fleet
from quintain_metadata import IN_MEMORY_URL
from quintain_runner import DatasetStats, Evaluation, read_cases

#: The deadline of a probe, in seconds.
PROBE_TIMEOUT_SECONDS = 120.0


class ProbeResult(Message):
    """The result of probing one target: duration and usage of its answer, or an error.

    ``charged`` says whether the call was charged, ``charge_unknown`` that this is not known (``charged`` is true then).
    ``usd`` is None if the price is not known.
    """

    target: str
    seconds: float
    error: str | None = None
    charged: bool = True
    charge_unknown: bool | None = None
    token_usage: TokenUsage | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The targets to probe, each with the first case of the dataset, under the first prompt."""

    evaluation: Evaluation
    config: Config | None
    dataset_stats: DatasetStats
    targets: tuple[str, ...]


async def probe_targets(plan: ProbePlan, settings: Settings) -> list[ProbeResult]:
    """Call each target once, concurrently.

    Raises `ConfigError` if no session may be opened, and `BusError` if there is no fleet.
    """
    with closing(read_cases(plan.dataset_stats.source)) as cases:
        case = plan.evaluation.prompts[0].apply(next(cases))
    request = InvokeRequest(
        question=case.question, messages=case.messages, system_prompt=case.system_prompt, settings=case.settings
    )
    async with _open_probe_session(plan, settings) as session:
        available_targets = (await session.get_info()).available_targets
        probes = [_probe_target(plan, session, request, target, available_targets) for target in plan.targets]
        return list(await asyncio.gather(*probes))


async def _probe_target(
    plan: ProbePlan, session: Client, request: InvokeRequest, target: str, available_targets: list[str]
) -> ProbeResult:
    started_at = time.monotonic()
    if target not in available_targets:
        # A call to a target without a worker would wait until its deadline.
        error = f"no worker serves it; served are: {', '.join(available_targets) or 'none'}"
        return ProbeResult(target=target, seconds=0, error=error, charged=False)
    try:
        result = await session.send(
            request.model_copy(update={"target": target}), deadline_seconds=PROBE_TIMEOUT_SECONDS
        )
    except Fault as fault:
        duration_seconds = time.monotonic() - started_at
        return ProbeResult(
            target=target,
            seconds=duration_seconds,
            error=_fault_text(fault),
            charged=fault.charged is not False,
            charge_unknown=True if fault.charged is None else None,
        )
    price = _price_of_target(plan, target)
    usage = result.token_usage
    cost = None if price is None or usage is None else float(price.of(usage))
    return ProbeResult(target=target, seconds=time.monotonic() - started_at, token_usage=usage, usd=cost)


def _fault_text(fault: Fault) -> str:
    """The fault's sentence, and the provider's own words, in which secrets are masked."""
    words = None if fault.provider_error is None else fault.provider_error.message
    return f"{fault.code}: {fault.message}" + (f'; the provider says: "{words}"' if words else "")


def _price_of_target(plan: ProbePlan, target: str) -> Price | None:
    config = plan.config
    return None if config is None or target not in config.targets else target_price(config.targets[target])


@contextlib.asynccontextmanager
async def _open_probe_session(plan: ProbePlan, settings: Settings) -> AsyncIterator[Client]:
    """Open a session with one call per target; it is closed on exit if there is an admin token."""
    fleet_plan = None
    if plan.config is not None and not is_on_fleet(settings):
        fleet_plan = embedded_fleet_plan(settings, plan.config, IN_MEMORY_URL)
    request = OpenSession(
        default_target=plan.targets[0],
        max_calls=len(plan.targets),
        label=f"check {plan.evaluation.name}"[:200],
        max_body_bytes=plan.evaluation.spec.max_body_bytes,
        expires_in_seconds=10 * PROBE_TIMEOUT_SECONDS,
    )
    async with connect_backend(settings, fleet_plan) as backend:
        if backend.admin is not None:
            opened = await backend.admin.open(request)
        elif backend.parent_token is not None:
            async with backend.connect_session(backend.parent_token) as parent:
                opened = await parent.open_child(request)
        else:
            raise ConfigError(
                "A probe on a fleet needs a session: set QUINTAIN_ADMIN_TOKEN to open one, or QUINTAIN_SESSION_TOKEN "
                "to use the budget of yours"
            )
        async with backend.connect_session(opened.token) as session:
            yield session
        if backend.admin is not None:
            await backend.admin.amend(AmendSession(session_id=opened.session_id, state=SessionState.CLOSED))
