"""What a program that a configuration names inherits: an allowlist, and what it lists itself."""

from __future__ import annotations

import pytest

from quintain.errors import ConfigError
from quintain.programs.program import SECRET_NAMES_VARIABLE, program_environment

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
