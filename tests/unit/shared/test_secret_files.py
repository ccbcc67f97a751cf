"""Secrets by file: a variable, or the file that stands for it, and never both."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.config.loader import load_config
from quintain.config.targets import OpenAITarget
from quintain.errors import ConfigError
from quintain.settings import read_secret, read_settings, without_variables


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


@pytest.mark.parametrize(
    ("held", "value"),
    [
        ("s3cret", "s3cret"),
        ("s3cret\n", "s3cret"),
        ("s3cret\r\n", "s3cret"),
        ("\ufeffs3cret\r\n", "s3cret"),
        ("s3\rcret", "s3\rcret"),
        ("s3cret\n\n", "s3cret\n"),
        (" s3cret ", " s3cret "),
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


def test_a_short_admin_token_out_of_a_file_is_refused_and_not_quoted(file: Path) -> None:
    file.write_text("hunter2")
    with pytest.raises(ConfigError, match="QUINTAIN_ADMIN_TOKEN is too short") as refusal:
        read_settings({"QUINTAIN_ADMIN_TOKEN_FILE": str(file)})
    assert "hunter2" not in refusal.value.message


def test_a_reference_of_the_configuration_is_read_from_its_file(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "quintain.yaml"
    path.write_text("targets: {a: {provider: openai, model: m, api_key: '${{ MY_KEY }}'}}")
    file.write_text("the key\n")
    resolved = load_config(path).resolve({"MY_KEY_FILE": str(file)})
    target = resolved.targets["a"]
    assert isinstance(target, OpenAITarget)
    assert target.api_key is not None
    assert target.api_key.get_secret_value() == "the key"
    with pytest.raises(ConfigError, match="MY_KEY_FILE names /nowhere"):
        load_config(path).resolve({"MY_KEY_FILE": "/nowhere"})


def test_who_may_not_have_a_variable_does_not_hear_of_its_file() -> None:
    env = {"A": "1", "A_FILE": "/a", "B": "2", "B_FILE": "/b"}
    assert without_variables(env, {"A"}) == {"B": "2", "B_FILE": "/b"}
