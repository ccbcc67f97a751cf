"""The environment: read once, wrong values named; secrets by file; the timings, and what tests may scale."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from pathlib import Path

import pytest

from quintain.config.loader import load_config
from quintain.config.targets import OpenAITarget
from quintain.errors import ConfigError
from quintain.settings import (
    TEST_LEASE_VARIABLE,
    Settings,
    read_secret,
    read_settings,
    without_variables,
)
from quintain.timings import DEFAULT_TIMINGS, Timings

# The environment: read once, wrong values named.


def test_every_variable_is_read() -> None:
    texts = {"broker_url": "amqp://b", "ledger_url": "sqlite:///l", "admin_token": "sixteen letters!"}
    texts |= {"session_token": "s", "gateway_url": "http://g", "ops_host": "0.0.0.0"}
    others = {"config": "dir/q.yaml", "state_dir": "/state", "ops_port": "9100"}
    settings = read_settings({f"QUINTAIN_{name.upper()}": text for name, text in (texts | others).items()})
    typed = {"config_path": Path("dir/q.yaml"), "state_dir": Path("/state"), "ops_port": 9100}
    assert settings == Settings(**texts, **typed)


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


# Secrets by file: a variable, or the file that stands for it, and never both.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


@pytest.mark.parametrize(
    ("held", "value"),
    [
        *(("s3cret", "s3cret"), ("s3cret\n", "s3cret"), ("s3cret\r\n", "s3cret"), ("\ufeffs3cret\r\n", "s3cret")),
        *(("s3\rcret", "s3\rcret"), ("s3cret\n\n", "s3cret\n"), (" s3cret ", " s3cret ")),
    ],
)
def test_a_files_value_is_what_it_holds_but_for_one_newline(file: Path, held: str, value: str) -> None:
    file.write_bytes(held.encode())
    assert read_secret({"NAME_FILE": str(file)}, "NAME") == value


def test_without_a_file_the_variable_counts_and_an_empty_one_is_none(file: Path) -> None:
    assert read_secret({"NAME": "a"}, "NAME") == "a"
    assert read_secret({"NAME": "a", "NAME_FILE": ""}, "NAME") == "a"
    assert read_secret({"NAME": "", "NAME_FILE": ""}, "NAME") is None
    assert read_secret({}, "NAME") is None


def test_a_value_and_a_file_for_it_are_one_too_many(file: Path) -> None:
    file.write_text("b")
    with pytest.raises(ConfigError, match="NAME and NAME_FILE are both set: leave one of them out"):
        read_secret({"NAME": "a", "NAME_FILE": str(file)}, "NAME")


def test_a_file_that_cannot_be_read_is_named_with_the_reason(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"NAME_FILE names {file}, which cannot be read \(No such file"):
        read_secret({"NAME_FILE": str(file)}, "NAME")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_secret({"NAME_FILE": str(tmp_path)}, "NAME")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no text"):
        read_secret({"NAME_FILE": str(file)}, "NAME")


@pytest.mark.parametrize("name", ["BROKER_URL", "LEDGER_URL", "ADMIN_TOKEN", "SESSION_TOKEN"])
def test_what_is_secret_in_the_settings_may_lie_in_a_file(file: Path, name: str) -> None:
    file.write_text("sixteen letters!\n")
    settings = read_settings({"HOME": "/h", f"QUINTAIN_{name}_FILE": str(file)})
    assert getattr(settings, name.lower()) == "sixteen letters!"


def test_a_reference_of_the_configuration_is_read_from_its_file(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text("targets: {a: {provider: openai, model: m, api_key: '${{ MY_KEY }}'}}")
    file.write_text("the key\n")
    resolved = load_config(path).resolve({"MY_KEY_FILE": str(file)})
    target = resolved.targets["a"]
    assert isinstance(target, OpenAITarget)
    assert target.api_key.get_secret_value() == "the key"
    with pytest.raises(ConfigError, match="MY_KEY_FILE names /nowhere"):
        load_config(path).resolve({"MY_KEY_FILE": "/nowhere"})


def test_who_may_not_have_a_variable_does_not_hear_of_its_file() -> None:
    env = {"A": "1", "A_FILE": "/a", "B": "2", "B_FILE": "/b"}
    assert without_variables(env, {"A"}) == {"B": "2", "B_FILE": "/b"}


# The timings: their defaults are the promised figures, they agree with each other, and tests may scale them.


PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "timings.md"

#: In the order of the table.
PROMISED = [
    *("lease", "heartbeat", "silent", "register_timeout", "admit_repeat", "held_admit", "ledger_silence"),
    *("shared_pause", "unknown_target", "answered_settle", "sweep", "gap", "host_heartbeat", "host_lost"),
]


def test_the_defaults_are_the_figures_of_the_protocol() -> None:
    told = [float(row) for row in re.findall(r"^\| .* \| ([0-9.]+) \|$", PAGE.read_text(), re.MULTILINE)]
    assert told == [getattr(DEFAULT_TIMINGS, f"{name}_seconds") for name in PROMISED]


def test_scaled_timings_keep_their_proportions() -> None:
    scaled = dataclasses.asdict(DEFAULT_TIMINGS.scaled(0.2))
    assert scaled == {
        name: pytest.approx(0.2 * seconds) for name, seconds in dataclasses.asdict(DEFAULT_TIMINGS).items()
    }
    for factor in (1e-3, 1 / 3, 1 / 7, 1 / 30, 0.7):
        DEFAULT_TIMINGS.scaled(factor)


@pytest.mark.parametrize(
    "seconds",
    [
        *({"lease_seconds": 9.9}, {"heartbeat_seconds": 3.1}, {"silent_seconds": 4.0}, {"ledger_silence_seconds": 3.0}),
        *({"host_lost_seconds": 4.0}, {"sweep_seconds": 0.0}, {"sweep_seconds": -1.0}, {"sweep_seconds": math.nan}),
    ],
)
def test_timings_that_contradict_each_other_are_refused(seconds: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Timings(**seconds)


def test_a_test_may_shorten_the_lease_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    timings = read_settings({"HOME": "/h", TEST_LEASE_VARIABLE: "3"}).timings
    assert (timings.lease_seconds, timings.heartbeat_seconds) == (pytest.approx(3), pytest.approx(0.4))
    assert timings.host_lost_seconds == pytest.approx(1.8)
    # A service that is started again takes as long to start as ever.
    assert timings.ledger_silence_seconds == DEFAULT_TIMINGS.ledger_silence_seconds
    assert [(record.levelno, TEST_LEASE_VARIABLE in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]


@pytest.mark.parametrize("text", ["0.9", "15.1", "-3", "nan", "inf", "three", "3 s"])
def test_a_lease_outside_of_its_bounds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="for tests of Quintain itself"):
        read_settings({"HOME": "/h", TEST_LEASE_VARIABLE: text})
