"""A flood of large messages without a session: the metadata service lives on in little memory, and answers others."""

from __future__ import annotations

import re
from pathlib import Path

import pika
import pytest

from support.process_fleet import process_fleet

pytestmark = pytest.mark.long

MIB = 1024 * 1024

CONFIG = "targets:\n  a: {provider: mock}\n"


def test_a_flood_without_a_token_takes_less_than_512_mib(broker_url: str) -> None:
    with process_fleet(broker_url, CONFIG, targets=["a"]) as fleet:
        service = fleet.start_service("metadata")
        honest = fleet.open_session("a", 5)
        with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            body, properties = b"x" * 15 * MIB, pika.BasicProperties(reply_to="gone", correlation_id="c")
            for _ in range(12):
                channel.basic_publish("quintain.metadata", "info", body, properties, mandatory=True)
                channel.basic_publish("quintain.invoke", "", body, properties, mandatory=True)
        assert fleet.info(honest.token)["callCount"] == 0
        assert service.alive
        status = Path(f"/proc/{service.pid}/status").read_text()
        (peak_kb,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        assert int(peak_kb) < 512 * 1024
        print(peak_kb)
