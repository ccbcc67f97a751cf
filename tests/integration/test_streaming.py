"""Pieces of an answer, from the provider to whoever asked for them, over a real broker and over memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from quintain.contracts.invoke import Chunk, InvokeRequest
from support.memory_fleet import MemoryFleet, memory_fleet

CONFIG = """
targets:
  slow: {provider: mock, response: "one two three four", chunk_delay_ms: 200}
"""


@pytest.fixture(params=["memory", pytest.param("rabbit", marks=pytest.mark.broker)])
async def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryFleet]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue("broker_url")
    async with memory_fleet(tmp_path, CONFIG, broker_url=url) as fleet:
        yield fleet


async def test_the_first_piece_comes_before_the_provider_has_finished(fleet: MemoryFleet) -> None:
    loop = asyncio.get_running_loop()
    heard: list[tuple[float, Chunk]] = []
    async with fleet.client("slow") as client:
        result = await client.send(
            InvokeRequest(question="?"), on_chunk=lambda chunk: heard.append((loop.time(), chunk))
        )
        ended = loop.time()
    assert [chunk.seq for _, chunk in heard] == list(range(len(heard)))
    assert result.raw_text.startswith("".join(chunk.delta for _, chunk in heard))
    assert heard[0][0] < ended - 0.3


async def test_openais_client_streams_and_is_charged_once(fleet: MemoryFleet) -> None:
    token = (await fleet.open_session("slow", 3)).token
    loop = asyncio.get_running_loop()
    said: list[tuple[float, str]] = []
    async with openai.AsyncOpenAI(base_url=f"{fleet.gateway_url}/v1", api_key=token, max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="slow", messages=[{"role": "user", "content": "?"}], stream=True
        )
        async for event in stream:
            if event.choices[0].delta.content:
                said.append((loop.time(), event.choices[0].delta.content))
    assert "".join(text for _, text in said) == "one two three four"
    assert said[-1][0] - said[0][0] > 0.3
