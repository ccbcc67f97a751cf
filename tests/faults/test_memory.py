"""Large answers, many at a time: no service needs the memory that its manifest allows, and no answer is lost."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator

import pytest

import quintain
from quintain.errors import Fault
from support.kubernetes_manifests import services
from support.process_fleet import ProcessFleet, process_fleet

MIB = 1024 * 1024

#: How many answers are under way, in how many characters each, and how many are asked for.
IN_FLIGHT, LENGTH, CALLS = 64, 7_000_000, 100

CONFIG = f"""
targets:
  large: {{provider: python, max_concurrency: {IN_FLIGHT}, callable: "large:answer"}}
"""

#: In turn: an answer that is compressed to nearly nothing, one to just what is kept for replays, one to more than that.
#: Python keeps each character of a text in four bytes where one of them needs four.
LARGE = f"""
import random


async def answer(prompt):
    name, kind = prompt.question, int(prompt.question) % 3
    size = {LENGTH} // 2 if kind == 2 else 440_000
    text = name * ({LENGTH} // len(name)) if kind == 0 else random.Random(name).randbytes(size).hex()
    return "\U0001f600" + text
"""

_UNITS = {"Mi": MIB, "Gi": 1024 * MIB}


def memory_limit(service: str) -> int:
    """The bytes that the manifests allow a service."""
    (workload,) = (each for each in services() if each.name == service)
    text = workload.container["resources"]["limits"]["memory"]
    return int(text[:-2]) * _UNITS[text[-2:]]


@pytest.fixture
def fleet(broker_url: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG, targets=["large"]) as fleet:
        (fleet.folder / "large.py").write_text(LARGE)
        fleet.start_services("metadata", "worker")
        fleet.start("serve", "gateway", "--port", "0").wait_for_output("ready  gateway")
        yield fleet


async def ask_all(client: quintain.Client) -> dict[str, tuple[bool, bytes] | str]:
    """Ask for every answer; returns of each whether it is a replay, and its hash, or the code of its fault."""
    free, answers = asyncio.Semaphore(IN_FLIGHT), dict[str, tuple[bool, bytes] | str]()

    async def ask(name: str) -> None:
        async with free:
            try:
                result = await client.invoke(name, target="large", request_id=name, timeout=240)
            except Fault as fault:
                answers[name] = fault.code
            else:
                answers[name] = result.replayed, hashlib.sha256(result.raw_text.encode()).digest()

    await asyncio.gather(*(ask(f"{number:06}") for number in range(CALLS)))
    return answers


@pytest.mark.long
async def test_large_answers_take_no_more_memory_than_the_manifests_allow(
    fleet: ProcessFleet, request: pytest.FixtureRequest
) -> None:
    limits = {process: memory_limit(process.args[1]) for process in fleet.processes}
    (gateway_url,) = re.findall(r"url (\S+)", fleet.processes[-1].read_output())
    opened = await asyncio.to_thread(fleet.open_session, "large", 10 * CALLS)
    async with quintain.connect(fleet.broker_url, opened.token) as client:
        answers = await ask_all(client)
    answered = {process: process.peak_bytes for process in fleet.processes}
    async with quintain.connect(gateway_url, opened.token) as client:
        again = await ask_all(client)
    peaks = {process: process.peak_bytes for process in fleet.processes}
    sizes = [
        f"{each.args[1]} {answered[each] / MIB:.0f}, then {peaks[each] / MIB:.0f} MiB of {limits[each] / MIB:.0f}"
        for each in peaks
    ]
    request.config.pluginmanager.getplugin("quintain-summary").add("memory", f"{CALLS} answers: {'; '.join(sizes)}")
    assert [answer for answer in answers.values() if isinstance(answer, str) or answer[0]] == []
    assert again == {
        name: "reply_expired" if int(name) % 3 == 2 else (True, answer[1]) for name, answer in answers.items()
    }
    assert all(peaks[each] < limits[each] for each in peaks), sizes
