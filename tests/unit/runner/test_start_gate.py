"""How many trials of a target begin while it is not known that its workers serve the planned configuration."""

from __future__ import annotations

import asyncio

import pytest

from quintain_runner.engine.scheduler import StartGate


async def entered(gate: StartGate, count: int) -> int:
    """How many of so many trials may begin at once."""
    trials = [asyncio.create_task(gate.enter()) for _ in range(count)]
    for _ in range(count):
        await asyncio.sleep(0)
    begun = sum(trial.done() for trial in trials)
    for trial in trials:
        trial.cancel()
    await asyncio.gather(*trials, return_exceptions=True)
    return begun


async def test_few_trials_begin_before_the_first_has_ended() -> None:
    gate = StartGate()
    assert await entered(gate, 9) == 3
    gate.leave(is_changed=False)
    assert await entered(gate, 9) == 9


async def test_another_configuration_closes_the_gate_again_for_as_long_as_it_takes() -> None:
    gate = StartGate(seconds=0.01)
    assert await entered(gate, 1) == 1
    gate.leave(is_changed=True)
    assert await entered(gate, 9) == 3
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(gate.enter(), 0.05)
    gate.leave(is_changed=True)
    assert await entered(gate, 9) == 1
    gate.leave(is_changed=False)
    assert await entered(gate, 9) == 9


async def test_a_slow_target_is_waited_for_only_so_long() -> None:
    gate = StartGate(seconds=0.01)
    for _ in range(9):
        await asyncio.wait_for(gate.enter(), 10)


async def test_without_a_known_configuration_nothing_is_waited_for() -> None:
    assert await entered(StartGate(seconds=0), 9) == 9
