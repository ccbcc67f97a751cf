"""What a fleet reports of its targets' fingerprints: in `info`, and with each reply."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from quintain.client.client import Client
from quintain.client.http_transport import open_http_transport
from quintain.contracts.invoke import InvokeRequest
from support.memory_fleet import memory_fleet


async def test_info_and_replies_carry_the_fingerprint_over_the_bus_and_over_http(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("print('one')")
    config = f"targets: {{bot: {{provider: command, command: ['{sys.executable}', bot.py]}}, echo: {{provider: mock}}}}"
    async with memory_fleet(tmp_path, config) as fleet:
        session = await fleet.open_session("bot", allowed_targets=["bot"])
        async with open_http_transport(fleet.gateway_url, session.token) as transport, fleet.client("bot") as bus:
            http = Client(transport)
            known = (await bus.get_info()).target_fingerprints or {}
            assert known.keys() == {"bot", "echo"}
            assert (await http.get_info()).target_fingerprints == {"bot": known["bot"]}
            for client in (bus, http):
                result = await client.send(InvokeRequest(question="q", target="bot"), request_id="first")
                assert (result.raw_text.strip(), result.target_fingerprint) == ("one", known["bot"])
            (tmp_path / "bot.py").write_text("print('two')")
            result = await bus.send(InvokeRequest(question="q", target="bot"), request_id="second")
            assert result.raw_text.strip() == "two"
            assert result.target_fingerprint not in {None, known["bot"]}
            # The worker registers again, as the file has changed.
            while ((await bus.get_info()).target_fingerprints or {})["bot"] == known["bot"]:
                await asyncio.sleep(0.02)
            assert ((await bus.get_info()).target_fingerprints or {})["bot"] == result.target_fingerprint
            replayed = await bus.send(InvokeRequest(question="q", target="bot"), request_id="first")
            assert (replayed.raw_text.strip(), replayed.target_fingerprint) == ("one", known["bot"])
