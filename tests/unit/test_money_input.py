"""What is no amount of US dollars is told where it is written, with the key: limits, prices, and limits of programs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from quintain.config.prices import target_price
from quintain.config.targets import TARGET_MODELS
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.session import AmendSession, OpenSession
from quintain_runner.spec.evaluation import EvaluationSpec

#: Amounts that are none, as YAML and JSON can have them.
BAD_LIMITS = [0, -1, -0.01, math.nan, math.inf, 1e400, "25$", "25", True, [25], 1_000_001]
BAD_PRICES = [-1, math.nan, math.inf, 1e400, "3 EUR", True, [3]]


def evaluation(grader: dict[str, Any] | None = None, **fields: Any) -> EvaluationSpec:
    graders = [{"name": "g", "command": ["x"], **(grader or {})}]
    return EvaluationSpec.model_validate({"dataset": "c", "graders": graders, **fields})


def openai(**price: Any) -> object:
    return TARGET_MODELS["openai"].model_validate({"provider": "openai", "model": "m", "price": price})


@pytest.mark.parametrize("amount", BAD_LIMITS)
def test_what_is_no_limit_is_told_with_its_key(amount: object) -> None:
    hosted = {"provider": "target", "child_session": {"targets": ["a"], "max_cost_usd": amount}}
    places = {
        "max_cost_usd": lambda: evaluation(max_cost_usd=amount),
        "target.max_cost_usd": lambda: evaluation({"target": {"max_cost_usd": amount}}),
        "child_session.max_cost_usd": lambda: TARGET_MODELS["target"].model_validate(hosted),
        "maxCostUsd": lambda: OpenSession.model_validate({"defaultTarget": "a", "maxCostUsd": amount}),
    }
    for key, read in places.items():
        with pytest.raises(ValidationError) as refused:
            read()
        (place, *_) = (".".join(map(str, error["loc"])) for error in refused.value.errors())
        assert place.endswith(key), place
    with pytest.raises(ValidationError, match="maxCostUsd"):
        AmendSession.model_validate({"sessionId": "s", "maxCostUsd": amount})


def test_only_a_change_takes_a_limit_away() -> None:
    assert AmendSession.model_validate({"sessionId": "s", "maxCostUsd": "none"}).max_cost_usd == "none"
    with pytest.raises(ValidationError):
        OpenSession.model_validate({"defaultTarget": "a", "maxCostUsd": "none"})


@pytest.mark.parametrize("amount", BAD_PRICES)
@pytest.mark.parametrize("key", ["input_per_million", "cache_write_per_million", "per_call"])
def test_what_is_no_price_is_told_with_its_key(amount: object, key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        openai(**{"input_per_million": 1, "output_per_million": 1, key: amount})
    assert {error["loc"][-1] for error in refused.value.errors()} == {key}


@pytest.mark.parametrize(
    ("price", "named"),
    [
        ({}, "price"),
        ({"input_per_million": 3}, "price"),
        ({"cached_input_per_million": 3}, "price"),
        ({"input_per_million": 3, "output_per_million": 15, "currency": "EUR"}, "currency"),
        ({"input_per_million_eur": 3, "output_per_million": 15}, "input_per_million_eur"),
    ],
)
def test_a_price_that_lacks_a_part_or_is_of_another_currency_is_told(price: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as refused:
        openai(**price)
    assert named in {error["loc"][-1] for error in refused.value.errors()}


LONG = {"above_input_tokens": 100, "input_per_million": 2, "output_per_million": 4}


@pytest.mark.parametrize(
    "price",
    [
        {"per_call": 1, "tiers": [LONG]},
        {"input_per_million": 1, "output_per_million": 1, "tiers": [LONG, LONG]},
        {"input_per_million": 1, "output_per_million": 1, "tiers": [{**LONG, "above_input_tokens": 200}, LONG]},
        {"input_per_million": 1, "output_per_million": 1, "tiers": [{"above_input_tokens": 1, "input_per_million": 1}]},
        {"input_per_million": 1, "output_per_million": 1, "tiers": [{**LONG, "above_input_tokens": 0}]},
    ],
    ids=["of no tokens", "twice", "falling", "half a price", "of none"],
)
def test_tiers_that_do_not_make_one_price_are_refused(price: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="tiers|price"):
        openai(**price)


def test_a_long_question_costs_what_its_tier_says() -> None:
    target = TARGET_MODELS["openai"].model_validate(
        {
            "provider": "openai",
            "model": "m",
            "price": {"input_per_million": 1, "output_per_million": 2, "tiers": [LONG]},
        }
    )
    price = target_price(target)
    assert price.of_call(TokenUsage(input=100, output=10)) == pytest.approx(120e-6)
    assert price.of_call(TokenUsage(input=101, output=10)) == pytest.approx(242e-6)


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"provider": "openai", "model": "m"}, True),
        ({"provider": "http", "url": "http://localhost/ask", "body": {"q": "{{ prompt }}"}}, True),
        ({"provider": "command", "command": ["python"]}, False),
        ({"provider": "agent", "agent": "module:agent"}, False),
        ({"provider": "target", "host": "h"}, False),
        ({"provider": "mock"}, False),
    ],
)
def test_what_answers_no_request_has_no_free_failures(fields: dict[str, Any], is_taken: bool) -> None:
    model, price = TARGET_MODELS[fields["provider"]], {"per_call": 0.1, "failed_tries": "free"}
    assert model.model_validate({**fields, "price": {"per_call": 0.1}}).price is not None
    if is_taken:
        assert model.model_validate({**fields, "price": price}).price is not None
        return
    with pytest.raises(ValidationError, match="failed_tries"):
        model.model_validate({**fields, "price": price})
