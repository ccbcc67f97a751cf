"""The registered targets, as an operator sees them: what each may take, what runs, until when it is paused; and the
operator's own word on that, which counts as a provider's does."""

from __future__ import annotations

import math

from quintain.contracts.discovery import RegisteredTarget, TargetList
from quintain.contracts.operating import PauseTarget, ResumeTarget, TargetPause
from quintain.errors import UnknownTarget
from quintain_metadata import upkeep
from quintain_metadata.routing import Wanted, unknown
from quintain_metadata.steps import Steps, one, run


def registered(now: int) -> Steps[TargetList]:
    """Every registered target, sorted."""
    counted = yield from run("SELECT target, count(*) FROM call WHERE state = 'running' GROUP BY target")
    running = {row[0]: row[1] for row in counted}
    rows = yield from run("SELECT name, provider, model, max_concurrency, paused_until FROM target ORDER BY name")
    targets = [
        RegisteredTarget(
            name=name,
            provider=provider,
            model=model,
            max_concurrency=most,
            running=running.get(name, 0),
            paused_until=until if until > now else None,
        )
        for name, provider, model, most, until in rows
    ]
    return TargetList(targets=targets, now=now)


def pause(now: int, ask: PauseTarget) -> Steps[TargetPause]:
    """Pause a target: of its provider's pause and the operator's the later end counts. Raises `UnknownTarget`."""
    until = yield from upkeep.pause(now, ask.target, math.ceil(ask.for_seconds * 1000))
    if until is None:
        raise (yield from _unknown(ask.target))
    return TargetPause(target=ask.target, paused_until=until, now=now)


def resume(now: int, ask: ResumeTarget) -> Steps[TargetPause]:
    """End a target's pause, its provider's too: one that still wants it says so again. Raises `UnknownTarget`."""
    if (yield from one("UPDATE target SET paused_until = 0 WHERE name = ? RETURNING 1", ask.target)) is None:
        raise (yield from _unknown(ask.target))
    return TargetPause(target=ask.target, now=now)


def _unknown(target: str) -> Steps[UnknownTarget]:
    return unknown(Wanted(target, "target", registered=False, available=(yield from upkeep.target_names())))
