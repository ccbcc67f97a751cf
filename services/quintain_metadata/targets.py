"""The registered targets, as an operator sees them: what each may take, what runs, and until when it is paused."""

from __future__ import annotations

from quintain.contracts.discovery import RegisteredTarget, TargetList
from quintain_metadata.steps import Steps, run


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
