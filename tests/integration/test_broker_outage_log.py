"""What a program prints when it loses its broker: a line for each beginning and end, and no message at any level."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintain.bus.rabbit_connection import install_value_filter
from support.outage_client import CANARY

TESTS = Path(__file__).parents[1]


def stderr_of(broker_url: str, logging_setting: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "support.outage_client", broker_url, logging_setting]
    finished = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stderr


def test_a_program_without_logging_prints_a_line_when_an_outage_begins_and_one_when_it_ends(broker_url: str) -> None:
    lines = stderr_of(broker_url, "unset").splitlines()
    assert ["lost" in line for line in lines] == [True, False, True, False], lines


def test_no_body_and_no_traceback_is_logged_at_debug_level(broker_url: str) -> None:
    text = stderr_of(broker_url, "debug")
    assert "DEBUG:aiormq.connection:" in text
    assert CANARY not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ["aiormq", "aiormq.channel", "aio_pika.exchange", "pamqp.frame"])
def test_the_libraries_records_lose_their_values(name: str, caplog: pytest.LogCaptureFixture) -> None:
    install_value_filter()
    caplog.set_level(logging.DEBUG)
    try:
        raise ValueError(CANARY)
    except ValueError:
        logging.getLogger(name).exception("Unhandled message %r returning", CANARY)
    assert CANARY not in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    logging.getLogger(name).warning("Connection %r was blocked by: %r", CANARY, "memory")
    assert [record.levelno for record in caplog.records] == [logging.DEBUG, logging.WARNING]
    assert CANARY not in caplog.text
