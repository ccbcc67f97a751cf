"""What an evaluation stands on, as `run` and `check` find it: this process or a fleet, which configuration, which
targets."""

from __future__ import annotations

import secrets
from pathlib import Path

from quintain.config import Config
from quintain.settings import MEMORY_URL, Settings, environment
from quintain_cli.config import configuration, configuration_path
from quintain_cli.up import FleetPlan
from quintain_metadata import IN_MEMORY
from quintain_runner import Evaluation, choose_targets

#: From so many trials on the metadata service has a process of its own: to begin it takes as long as some hundred
#: calls.
APART_TRIALS = 1000


def is_on_fleet(settings: Settings) -> bool:
    """Whether the environment names a fleet: a broker's, else a gateway's."""
    if settings.broker_url is None:
        return settings.gateway_url is not None
    return not settings.broker_url.startswith(MEMORY_URL)


def config_beside(settings: Settings, named: Path | None, folder: Path, *, on_fleet: bool) -> Config | None:
    """The configuration of an evaluation in this folder; on a fleet the workers have it, and here it may be missing,
    but not be wrong: what it names is what graders must not see. Raises `ConfigError`."""
    if on_fleet and configuration_path(settings, named, start=folder) is None:
        return None
    return configuration(settings, named, start=folder)


def targets_under_test(
    evaluation: Evaluation, config: Config | None, only: tuple[str, ...], *, on_fleet: bool
) -> tuple[str, ...]:
    """The systems under test. On a fleet its own list decides, before the first call, what is known.

    Raises `ConfigError`.
    """
    configured = [] if config is None else list(config.targets)
    if on_fleet:
        configured += [*(evaluation.spec.targets or ()), *only]
    return choose_targets(evaluation, list(dict.fromkeys(configured)), only)


def embedded_plan(
    settings: Settings, config: Config, ledger_url: str, *, trials: int = 0, place: Path | None = None
) -> FleetPlan:
    """The services of this process, on this ledger, for so many trials, with their results in a place of their own. A
    ledger in memory has one life: it stays here."""
    return FleetPlan(
        config=config,
        env=environment(),
        broker_url=MEMORY_URL,
        ledger_url=ledger_url,
        admin_token=settings.admin_token or secrets.token_urlsafe(32),
        place=None if place is None else str(place.absolute()),
        timings=settings.timings,
        apart=trials >= APART_TRIALS and ledger_url != IN_MEMORY,
    )
