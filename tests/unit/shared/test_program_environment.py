"""What a program that a configuration names inherits, and its secrets in what it wrote: masked."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from quintain.contracts.credentials import mask_secrets
from quintain.errors import ConfigError
from quintain.programs.program import SECRET_NAMES_VARIABLE, program_environment, secrets_of

# What a program that a configuration names inherits: an allowlist, and what it lists itself.


ENV = {
    "PATH": "/bin", "LC_ALL": "C", "https_proxy": "http://proxy", "SSL_CERT_FILE": "/ca.pem",
    "AWS_SECRET_ACCESS_KEY": "canary", "OPENAI_API_KEY": "canary", "OPENAI_API_KEY_FILE": "/run/canary",
    "QUINTAIN_BROKER_URL": "amqp://canary", "MY_SETTING": "1",
}  # fmt: skip


def test_what_is_not_listed_is_not_passed_on() -> None:
    assert program_environment(ENV) == {
        "PATH": "/bin", "LC_ALL": "C", "https_proxy": "http://proxy", "SSL_CERT_FILE": "/ca.pem",
    }  # fmt: skip


def test_a_program_gets_what_its_configuration_lists_and_its_own_values_win() -> None:
    env = program_environment(ENV, env_from=["MY_SETTING"], own={"PATH": "/opt", "OTHER": "2"})
    listed = {"MY_SETTING": "1", SECRET_NAMES_VARIABLE: "MY_SETTING"}
    assert env == {**program_environment(ENV), **listed, "PATH": "/opt", "OTHER": "2"}


@pytest.mark.parametrize("name", ["NOT_SET", "QUINTAIN_BROKER_URL", "QUINTAIN_ADMIN_TOKEN_FILE", "QUINTAIN_LEDGER_URL"])
def test_a_variable_that_is_not_set_or_is_quintains_own_secret_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        program_environment(ENV, env_from=[name])


# Secrets of a program in what it wrote: the one function that masks them.


SECRET = "battery-staple/of a 'horse'\n+correct"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
        repr(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1],
        *SECRET.split()[::3],
    ],
)
def test_a_secret_is_masked_in_each_form(form: str) -> None:
    assert mask_secrets(f"before {form} after {form}", [SECRET]) == "before … after …"


@pytest.mark.parametrize("cut", range(4, len(SECRET)))
def test_what_is_left_of_a_secret_at_an_edge_is_masked(cut: int) -> None:
    assert mask_secrets(f"{SECRET[-cut:]} in between {SECRET[:cut]}", [SECRET]) == "… in between …"


def test_what_is_no_secret_is_as_it_was() -> None:
    text = f"nothing of it, \0 \udc80 {SECRET.split()[1]}"
    assert mask_secrets(text, [SECRET, ""]) == text
    assert mask_secrets(text, []) == text


def test_secrets_are_what_env_from_lists_and_what_env_takes_from_elsewhere() -> None:
    env = {"PATH": "/bin", "KEY": "of a provider", "HOME": "/home/user", "PWD": "/srv/folder", "DEBUG": "1"}
    own = {"OTHER": "Bearer of a provider", "MODE": "production", "DATA": "/srv/folder/data"}
    given = program_environment(env, env_from=["KEY", "PATH", "DEBUG"], own=own)
    assert secrets_of(given) == ("of a provider", "Bearer of a provider")
    assert secrets_of(program_environment(env, own={"MODE": "production"})) == ()
