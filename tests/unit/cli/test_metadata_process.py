"""A metadata service's process that does not come to answer: why, in a sentence, and nothing is left of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.bus.memory import MemoryBroker
from quintain.errors import LedgerInUse, QuintainError
from quintain_cli.fleet.metadata_process import run_metadata_process
from quintain_metadata.ledger.factory import open_ledger
from quintain_metadata.service.subprocess_status import StartupStatus
from support.command_line import clean_environment


async def start_and_stop(ledger_url: str, **env: str) -> None:
    broker = MemoryBroker()
    try:
        async with run_metadata_process(broker, ledger_url, "an administrator's token", {**clean_environment(), **env}):
            raise AssertionError("it began")
    finally:
        broker.close()


async def test_one_that_ends_before_it_answers_is_said_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "quintain_metadata").mkdir()
    (tmp_path / "quintain_metadata" / "__main__.py").write_text("raise SystemExit(3)")
    (tmp_path / "quintain_metadata" / "__init__.py").touch()
    with pytest.raises(QuintainError, match="exited with 3 before it was ready"):
        await start_and_stop("sqlite://", PYTHONPATH=str(tmp_path))


async def test_one_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(QuintainError, match=r"cannot be started \(No such file or directory\)"):
        await start_and_stop("sqlite://")


async def test_a_ledger_in_use_is_that_error_here_too(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'ledger.sqlite3'}"
    ledger = await open_ledger(url)
    with pytest.raises(LedgerInUse, match="is open in another process"):
        await start_and_stop(url)
    await ledger.close()


def test_an_error_of_no_known_kind_keeps_its_words() -> None:
    error = StartupStatus.from_error(QuintainError("something else")).to_error()
    assert type(error) is QuintainError
    assert error.message == "something else"
