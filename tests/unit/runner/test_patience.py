"""What is asked again, how often, and what is not."""

from __future__ import annotations

import pytest

from quintain.errors import (
    BudgetUnavailable,
    Expired,
    Fault,
    GatewayUnavailable,
    InternalFault,
    Overloaded,
    ProviderFailed,
    QuintainError,
    Throttled,
)
from quintain_runner import patience
from quintain_runner.patience import MOST_TIMES, patiently


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.0)


class Asked:
    """Fails so many times, then answers."""

    def __init__(self, error: QuintainError, *, failures: int) -> None:
        self.error, self.left, self.times = error, failures, 0

    async def __call__(self) -> str:
        self.times += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "answered"


@pytest.mark.parametrize("error", [Overloaded(), BudgetUnavailable(), Throttled(), Expired(), GatewayUnavailable()])
async def test_what_the_fleet_could_not_take_is_asked_again(error: QuintainError) -> None:
    heard: list[QuintainError] = []
    asked = Asked(error, failures=3)
    assert await patiently(asked, heard.append) == "answered"
    assert (asked.times, heard) == (4, [error] * 3)


@pytest.mark.parametrize("error", [InternalFault(), ProviderFailed(), Expired(charged=True), Fault()])
async def test_what_was_charged_or_fails_by_itself_is_not(error: Fault) -> None:
    asked = Asked(error, failures=1)
    with pytest.raises(type(error)):
        await patiently(asked)
    assert asked.times == 1


async def test_patience_has_an_end() -> None:
    asked = Asked(Expired(), failures=100)
    with pytest.raises(Expired):
        await patiently(asked)
    assert asked.times == MOST_TIMES[Expired] + 1
