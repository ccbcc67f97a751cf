"""A doctor's lines: each verdict by what was found, and with its mend."""

from __future__ import annotations

import pytest

from quintain.bus.rabbit_declarations import DeclarationCheck, DeclarationStatus
from quintain_cli.broker_checks import check_declaration, check_message_size, check_version


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("3.9.29", "fail"), ("3.10.8", "ok"), ("4.2.1", "ok"), ("4.3.0", "warn"), ("10.0", "warn"), ("of my own", "warn")],
)
def test_a_version_is_held_against_those_the_suite_was_run_on(version: str, verdict: str) -> None:
    line = check_version(version)
    assert line.verdict == verdict
    assert (line.mend is None) == (verdict == "ok")


@pytest.mark.parametrize(
    ("standing", "verdict"),
    [
        (DeclarationStatus.SAME, "ok"),
        (DeclarationStatus.MISSING, "warn"),
        (DeclarationStatus.HIDDEN, "warn"),
        (DeclarationStatus.DIFFERENT, "fail"),
    ],
)
def test_only_a_difference_fails(standing: DeclarationStatus, verdict: str) -> None:
    line = check_declaration(DeclarationCheck("quintain.invoke", standing, "the broker's word"))
    assert line.verdict == verdict
    assert (line.mend is None) == (verdict == "ok")


def test_a_broker_that_takes_larger_messages_than_the_protocol_has_is_found() -> None:
    verdicts = [check_message_size(refuses_larger=refuses).verdict for refuses in (True, False)]
    assert verdicts == ["ok", "warn"]
