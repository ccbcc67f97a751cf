"""The environment: read once, wrong values named."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain.settings import CONSUMER_TIMEOUT_SECONDS, Settings, read_settings


def test_an_empty_environment_says_nothing() -> None:
    assert read_settings({"HOME": "/home/a"}) == Settings(
        broker_url=None,
        ledger_url=None,
        config_path=None,
        admin_token=None,
        session_token=None,
        gateway_url=None,
        state_dir=Path("/home/a/.local/state/quintain"),
        ops_port=None,
        ops_host="127.0.0.1",
    )


def test_every_variable_is_read() -> None:
    settings = read_settings(
        {
            "QUINTAIN_BROKER_URL": "amqp://b",
            "QUINTAIN_LEDGER_URL": "sqlite:///l",
            "QUINTAIN_CONFIG": "dir/q.yaml",
            "QUINTAIN_ADMIN_TOKEN": "sixteen letters!",
            "QUINTAIN_SESSION_TOKEN": "s",
            "QUINTAIN_GATEWAY_URL": "http://g",
            "QUINTAIN_STATE_DIR": "/state",
            "QUINTAIN_OPS_PORT": "9100",
            "QUINTAIN_OPS_HOST": "0.0.0.0",
        }
    )
    assert settings == Settings(
        broker_url="amqp://b",
        ledger_url="sqlite:///l",
        config_path=Path("dir/q.yaml"),
        admin_token="sixteen letters!",
        session_token="s",
        gateway_url="http://g",
        state_dir=Path("/state"),
        ops_port=9100,
        ops_host="0.0.0.0",
    )


def test_an_empty_variable_is_an_absent_one() -> None:
    names = ("BROKER_URL", "LEDGER_URL", "CONFIG", "ADMIN_TOKEN", "SESSION_TOKEN", "GATEWAY_URL", "STATE_DIR")
    empty = {f"QUINTAIN_{name}": "" for name in names}
    assert read_settings({**empty, "HOME": "/h"}) == read_settings({"HOME": "/h"})


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"QUINTAIN_STATE_DIR": "/q", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/q"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/quintain"),
        ({"HOME": "/h"}, "/h/.local/state/quintain"),
    ],
)
def test_the_state_folder_is_the_nearest_named(env: dict[str, str], folder: str) -> None:
    assert read_settings(env).state_dir == Path(folder)


def test_a_short_admin_token_is_refused_and_not_quoted() -> None:
    with pytest.raises(ConfigError, match="QUINTAIN_ADMIN_TOKEN is too short") as refusal:
        read_settings({"QUINTAIN_ADMIN_TOKEN": "hunter2"})
    assert "hunter2" not in refusal.value.message


def test_a_missing_broker_is_named_with_its_mend() -> None:
    with pytest.raises(ConfigError, match=r"QUINTAIN_BROKER_URL is not set: .*amqp://"):
        read_settings({"HOME": "/h"}).require_broker_url()
    assert read_settings({"HOME": "/h", "QUINTAIN_BROKER_URL": "memory://"}).require_broker_url() == "memory://"


def test_sessions_are_kept_for_ever_or_for_days() -> None:
    assert read_settings({}).retention_days is None
    assert read_settings({"QUINTAIN_RETENTION_DAYS": "30"}).retention_days == 30
    for wrong in ("2", "-30", "30 d", "9" * 6):
        with pytest.raises(ConfigError, match="QUINTAIN_RETENTION_DAYS"):
            read_settings({"QUINTAIN_RETENTION_DAYS": wrong})


def test_the_brokers_consumer_timeout_is_seconds() -> None:
    assert read_settings({}).consumer_timeout_seconds == CONSUMER_TIMEOUT_SECONDS
    assert read_settings({"QUINTAIN_CONSUMER_TIMEOUT_SECONDS": "60"}).consumer_timeout_seconds == 60
    for wrong in ("9", "0", "-60", "nan", "inf", "an hour"):
        with pytest.raises(ConfigError, match="QUINTAIN_CONSUMER_TIMEOUT_SECONDS"):
            read_settings({"QUINTAIN_CONSUMER_TIMEOUT_SECONDS": wrong})
