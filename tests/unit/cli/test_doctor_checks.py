"""A doctor's lines: each verdict by what was found, and with its mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.bus.rabbit_declarations import DeclarationCheck, DeclarationStatus
from quintain_cli.broker_checks import TRIED_VERSIONS, check_declaration, check_message_size, check_version


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        *((version, "ok") for version in ("3.10.8", "4.0.5", "4.3.6")),
        *((version, "warn") for version in ("3.10.25", "4.2.1", "4.3.0", "4.4.0", "10.0", "of my own")),
        ("3.9.29", "fail"),
    ],
)
def test_a_version_is_held_against_those_that_were_tried(version: str, verdict: str) -> None:
    line = check_version(version)
    assert line.verdict == verdict
    assert (line.mend is None) == (verdict == "ok")


@pytest.mark.parametrize("page", ["kubernetes.md", "operations.md"])
def test_the_pages_name_the_versions_that_were_tried(page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    assert [version for version in TRIED_VERSIONS if version not in text] == []


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
