"""What a run cost: the configured price, else the list's, else nobody knows, and nothing is guessed."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import pytest

from quintain.config.prices import Price, known_prices, list_source, target_price
from quintain.config.target_fields import TargetPrice
from quintain.config.targets import AnthropicTarget, MockTarget, OpenAITarget, TargetConfig, TargetTarget
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.session import CostUsage, UsageLine
from quintain_runner.results.bill import Bill, CallRole, cost_line, cost_text, dollars, tries_line

CHEAP = Price(input_per_million=Decimal(1), output_per_million=Decimal(4))


def line(target: str, calls: int, *, grader: str | None = None, tries: int = 0, **cost: float) -> UsageLine:
    """What so many calls took, each of ten tokens, of which ``unproven`` tries may be billed too."""
    return UsageLine(
        target=target,
        grader=grader,
        calls=calls,
        counted=calls,
        tries=tries or calls,
        token_usage=TokenUsage(input=10 * calls),
        cost=CostUsage.model_validate(cost),
    )


def test_the_configured_price_is_taken_before_the_list() -> None:
    price = TargetPrice(input_per_million=0.15, output_per_million=0.6)
    target = OpenAITarget(provider="openai", model="gpt-4o", price=price)
    found = target_price(target)
    own = (found.input_per_million, found.output_per_million, found.source)
    assert own == (Decimal("0.15"), Decimal("0.6"), "configuration")
    assert found.of(TokenUsage(input=2_000_000, output=1_000_000)) == Decimal("0.9")
    listed = target_price(OpenAITarget(provider="openai", model="gpt-4o"))
    assert (listed.input_per_million, listed.output_per_million) == (Decimal("2.5"), Decimal(10))
    assert (listed.source, listed.tiers) == (list_source(), [])


@pytest.mark.parametrize(
    ("base_url", "configured", "found"),
    [
        ("https://openrouter.ai/api/v1", None, "free"),
        ("https://openrouter.ai/api/v1", "held", "held"),
        ("https://openrouter.ai.example/api/v1", None, None),
        ("https://api.deepseek.com", "free", "free"),
        (None, None, None),
    ],
)
def test_failed_tries_are_free_where_vendors_say_so(
    base_url: str | None, configured: Literal["free", "held"] | None, found: str | None
) -> None:
    price = TargetPrice(per_call=0.1, failed_tries=configured)
    known = target_price(OpenAITarget(provider="openai", model="m", base_url=base_url, price=price))
    assert known.failed_tries == found


@pytest.mark.parametrize(
    "target",
    [
        OpenAITarget(provider="openai", model="a-model-of-our-own"),
        OpenAITarget(provider="openai", model="gpt-4o", base_url="http://127.0.0.1:11434/v1"),
        AnthropicTarget(provider="anthropic", model="gpt-4o"),
        MockTarget(provider="mock"),
    ],
)
def test_what_nobody_lists_has_no_price(target: TargetConfig) -> None:
    assert target_price(target) is None
    assert known_prices({"it": target}) == {}


def test_a_hosted_target_costs_what_its_session_does_and_what_a_call_does() -> None:
    hosted: dict[str, object] = {"provider": "target", "child_session": {"targets": ["a"]}}
    for price, usd in ((None, 0), ({"per_call": 0.02}, 0.02)):
        found = target_price(TargetTarget.model_validate({**hosted, "price": price}))
        assert found.of_call(None) == usd
    assert target_price(TargetTarget.model_validate({"provider": "target"})) is None


def test_one_call_has_a_cost_where_the_price_of_its_prompt_is_known() -> None:
    found = target_price(AnthropicTarget(provider="anthropic", model="claude-sonnet-4-5"))
    assert found.of_call(TokenUsage(input=200_000, output=1_000)) == 0.615
    # Above the limit of a tier all tokens of the call have its prices, and each kind its own.
    assert found.of_call(TokenUsage(input=200_001, output=1_000)) == 1.222506
    usage = TokenUsage(input=300_000, output=1_000, cached=100_000, cache_write=60_000, cache_write_1h=10_000)
    assert found.of_call(usage) == 0.84 + 0.06 + 0.375 + 0.12 + 0.0225
    assert found.of_call(None) is None
    assert CHEAP.of_call(TokenUsage(input=1_000_000, output=250_000)) == 2
    # What was written into the cache, and that for an hour, has a price of its own, or none.
    haiku = target_price(AnthropicTarget(provider="anthropic", model="claude-haiku-4-5"))
    assert haiku.cache_write_per_million == haiku.input_per_million * Decimal("1.25")
    usage = TokenUsage(input=1_000_000, cache_write=400_000, cache_write_1h=300_000)
    assert haiku.of_call(usage) == 0.6 + 0.125 + 0.6
    assert haiku.with_fields(cache_write_1h_per_million=None).of_call(usage) is None
    cached = TokenUsage(input=1_000_000, output=0, cached=400_000, cache_write=100_000)
    assert CHEAP.of(cached) == 1
    own = {"cached_input_per_million": Decimal("0.5"), "cache_write_per_million": Decimal("1.25")}
    assert CHEAP.with_fields(**own).of(cached) == Decimal("0.825")


@pytest.mark.parametrize(
    ("usage", "saved"),
    [
        ({"cached": 400_000}, "0.36"),
        ({"cache_write": 400_000}, "-0.1"),
        ({"cached": 400_000, "cache_write": 200_000, "cache_write_1h": 100_000}, "0.235"),
    ],
)
def test_the_cache_saved_what_it_read_cheaper_less_what_writing_cost(usage: dict[str, int], saved: str) -> None:
    found = target_price(AnthropicTarget(provider="anthropic", model="claude-haiku-4-5"))
    assert found.saved(TokenUsage(input=1_000_000, output=5, **usage)) == Decimal(saved)


def test_a_bill_is_the_sum_of_its_lines_in_each_division() -> None:
    lines = [
        line("bot", 2, spent_usd=2.0),
        line("bot", 1, grader="style", spent_usd=0.5),
        line("judge", 3, grader="relevance", spent_usd=1.0, tries=5),
        line("bot", 2, spent_usd=0.1),
    ]
    bill = Bill.of(lines)
    assert {name: usage.calls for name, usage in bill.targets.items()} == {"bot": 5, "judge": 3}
    assert {name: usage.calls for name, usage in bill.graders.items()} == {"style": 1, "relevance": 3}
    assert {role: usage.token_usage.input for role, usage in bill.roles.items()} == {
        CallRole.ASKED: 40,
        CallRole.JUDGE: 40,
    }
    for division in (bill.targets, bill.roles):
        assert sum(usage.tries for usage in division.values()) == bill.total.tries == 10
        assert round(sum(usage.cost.spent_usd for usage in division.values()), 9) == bill.total.cost.spent_usd == 3.6
    said = "cost $3.60: bot $2.60, judge $1.00; asked $2.10, graders $1.50 (style $0.5000, relevance $1.00)"
    assert cost_line(bill) == said
    assert Bill.from_wire(bill.to_wire()) == bill


@pytest.mark.parametrize(
    ("cost", "shown"),
    [
        (CostUsage(), "$0.00"),
        (CostUsage(unknown=1), "unknown"),
        (CostUsage(spent_usd=1.0, excess_usd=0.25), "$1.25"),
        (CostUsage(spent_usd=1.0, unknown=1), "≥ $1.00"),
        (CostUsage(spent_usd=1.0, held_usd=0.25, reserved_usd=0.25), "$1.00 + ≤ $0.5000"),
        (CostUsage(held_usd=2.0, unknown=3), "≥ $0.00 + ≤ $2.00"),
    ],
)
def test_what_is_not_known_is_never_nothing(cost: CostUsage, shown: str) -> None:
    assert cost_text(cost) == shown


@pytest.mark.parametrize(
    ("used", "saved", "told"),
    [
        ({"cached": 500_000}, 0.25, "cache saved $0.2500 (500,000 tokens read, 0 written)"),
        ({"cache_write": 400_000}, -0.4, "cache cost $0.4000 more than it saved (0 tokens read, 400,000 written)"),
    ],
)
def test_a_run_says_what_caches_saved(used: dict[str, int], saved: float, told: str) -> None:
    prices = {"cached_input_per_million": Decimal("0.5"), "cache_write_per_million": Decimal(2)}
    cached = line("bot", 2).with_fields(token_usage=TokenUsage(input=1_000_000, **used))
    bill = Bill.of([cached, line("judge", 1)], prices=dict.fromkeys(("bot", "judge"), CHEAP.with_fields(**prices)))
    assert bill.cache_saved_usd == saved
    assert told in str(cost_line(bill))
    assert Bill.of([cached]).cache_saved_usd is None


def test_requests_are_told_where_they_are_not_the_calls() -> None:
    assert tries_line(Bill.of([line("bot", 3)])) is None
    said = tries_line(Bill.of([line("bot", 3, tries=5).with_fields(unproven_tries=2)]))
    assert said.startswith("provider requests 5 for 3 calls; 2 ")


@pytest.mark.parametrize(
    ("usd", "shown"),
    [(None, "-"), (0.0, "$0.00"), (0.00123, "$0.0012"), (2.5e-7, "$0.00000025"), (1234.5, "$1,234.50")],
)
def test_an_amount_is_shown_as_precisely_as_it_takes(usd: float | None, shown: str) -> None:
    assert dollars(usd) == shown
