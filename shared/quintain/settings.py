"""The environment, read once: the only module that looks at it (``protocol.md`` §6)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import ConfigError

MEMORY_URL = "memory://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says. None where it says nothing."""

    broker_url: str | None
    ledger_url: str | None
    config_path: Path | None
    admin_token: str | None
    session_token: str | None
    gateway_url: str | None
    state_dir: Path

    def require_broker_url(self) -> str:
        """The broker's URL; raises `ConfigError` where none is named."""
        if self.broker_url is None:
            raise ConfigError(
                "QUINTAIN_BROKER_URL is not set: name a broker, such as amqp://guest:guest@127.0.0.1:5672/"
            )
        return self.broker_url

    def require_fleet_url(self) -> str:
        """Where an evaluator reaches the fleet: the broker's URL, else a gateway's; raises `ConfigError`."""
        if self.broker_url is None and self.gateway_url is not None:
            return self.gateway_url
        try:
            return self.require_broker_url()
        except ConfigError as neither:
            raise ConfigError(
                f"{neither.message}; or set QUINTAIN_GATEWAY_URL to a gateway, such as http://127.0.0.1:8787"
            ) from None

    def require_session_token(self) -> str:
        """The session's token; raises `ConfigError` where there is none."""
        if self.session_token is None:
            raise ConfigError(
                "QUINTAIN_SESSION_TOKEN is not set: open a session with `quintain session open --default-target NAME`"
            )
        return self.session_token


def environment() -> dict[str, str]:
    """A copy of the process's environment, to be passed down."""
    return dict(os.environ)


def read_settings(env: Mapping[str, str]) -> Settings:
    """The settings of this environment. Raises `ConfigError` where a value cannot be used."""
    admin_token = env.get("QUINTAIN_ADMIN_TOKEN") or None
    if admin_token is not None and len(admin_token) < 16:
        raise ConfigError("QUINTAIN_ADMIN_TOKEN is too short: any string of 16 characters or more")
    config = env.get("QUINTAIN_CONFIG")
    return Settings(
        broker_url=env.get("QUINTAIN_BROKER_URL") or None,
        ledger_url=env.get("QUINTAIN_LEDGER_URL") or None,
        config_path=Path(config) if config else None,
        admin_token=admin_token,
        session_token=env.get("QUINTAIN_SESSION_TOKEN") or None,
        gateway_url=env.get("QUINTAIN_GATEWAY_URL") or None,
        state_dir=_state_dir(env),
    )


def _state_dir(env: Mapping[str, str]) -> Path:
    if env.get("QUINTAIN_STATE_DIR"):
        return Path(env["QUINTAIN_STATE_DIR"])
    if env.get("XDG_STATE_HOME"):
        return Path(env["XDG_STATE_HOME"]) / "quintain"
    return Path(env.get("HOME") or Path.home()) / ".local" / "state" / "quintain"
