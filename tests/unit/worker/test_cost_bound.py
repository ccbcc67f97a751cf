"""What one try can cost at most: of requests of each kind, and of targets of each kind."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.config.prices import Price, PriceTier, target_price
from quintain.config.targets import TARGET_MODELS
from quintain.contracts.api_request import ApiName, ApiRequest, json_text
from quintain.contracts.invoke import InvokeRequest, TokenUsage
from quintain.contracts.money import picodollars
from quintain_worker.cost_bound import ADDED_TOKENS, ADDED_TOKENS_WITH_TOOLS, CostBound, CostRule, cost_rules

PRICE = {"input_per_million": 1, "output_per_million": 10}
VECTORS = {"input_per_million": 1, "output_per_million": 0}
#: Picodollars of one token.
IN, OUT = 10**6, 10**7


def rule(**fields: Any) -> CostRule:
    model = {"provider": "openai", "model": "own", "base_url": "http://127.0.0.1:1/v1", "price": PRICE}
    given = {name: value for name, value in {**model, **fields}.items() if value is not None}
    target = TARGET_MODELS[given["provider"]].model_validate(given)
    return CostRule.of_target("small", target, target_price(target))


def bound(api: ApiName | None, body: dict[str, Any], headers: dict[str, str] | None = None, **target: Any) -> CostBound:
    """The bound of a request of 1,000 bytes, to a target without settings of its own."""
    asked = InvokeRequest.model_validate(body) if api is None else ApiRequest(api, json_text(body), headers or {})
    found = replace(rule(**target), default_bytes=0)
    first = found.bound(asked, 1000)
    assert found.bound(asked, 1000) == first, "a bound depends on its request alone"
    return first


MESSAGES = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


def turn(*content: object, role: str = "user", **fields: object) -> dict[str, Any]:
    """A conversation of one turn with these parts."""
    return {"messages": [{"role": role, "content": [*content], **fields}]}


def result_of(part: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "x", "content": [part]}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (None, {"question": "hi", "settings": {"maxTokens": 5}}),
        (None, {"messages": MESSAGES, "settings": {"maxTokens": 4, "extraBody": {"max_completion_tokens": 5}}}),
        ("chat", {"messages": MESSAGES, "max_tokens": 5}),
        ("chat", {"messages": MESSAGES, "max_completion_tokens": 5, "max_tokens": 4}),
        ("responses", {"input": "hi", "max_output_tokens": 5}),
        ("completions", {"prompt": "hi", "max_tokens": 5}),
        ("completions", {"prompt": [1, 2, 3], "max_tokens": 5}),
        ("messages", {"messages": MESSAGES, "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 4}}),
    ],
)
def test_text_has_at_most_a_token_per_byte_and_answers_have_their_limit(
    api: ApiName | None, body: dict[str, Any]
) -> None:
    assert bound(api, body).amount == (1000 + ADDED_TOKENS) * IN + 5 * OUT


def test_what_else_a_request_asks_for_is_counted() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with_tools = bound("chat", {"messages": MESSAGES, "max_tokens": 5, "tools": tools})
    assert with_tools.amount == (1000 + ADDED_TOKENS_WITH_TOOLS) * IN + 5 * OUT
    assert bound("completions", {"prompt": ["a", "b"], "max_tokens": 5}).amount == (1000 + ADDED_TOKENS) * IN + 10 * OUT
    assert bound("embeddings", {"input": ["a", "b"]}, price=VECTORS).amount == (1000 + ADDED_TOKENS) * IN


@pytest.mark.parametrize(
    ("settings", "body", "output"),
    [
        ({"max_tokens": 7}, {}, 7),
        ({"max_tokens": 7}, {"max_tokens": 3}, 3),
        ({"max_tokens": 7}, {"max_tokens": None}, 7),
        ({"max_tokens": 7, "settings": {"extra_body": {"max_completion_tokens": 9}}}, {"max_tokens": 3}, 9),
        ({"settings": {"extra_body": {"max_completion_tokens": 9}}}, {}, None),
        ({}, {}, None),
        ({"max_tokens": 7}, {"max_tokens": 3.0}, None),
        ({"max_tokens": 7}, {"max_tokens": -1}, None),
        ({"max_tokens": 7}, {"max_tokens": True}, None),
        ({"max_tokens": 7}, {"max_output_tokens": 3}, "max_output_tokens"),
    ],
)
def test_a_limit_counts_where_the_provider_is_sure_to_get_it(
    settings: dict[str, Any], body: dict[str, Any], output: int | str | None
) -> None:
    found = bound("chat", {"messages": MESSAGES, **body}, **settings)
    if isinstance(output, int):
        assert found.amount == (1000 + ADDED_TOKENS) * IN + output * OUT
    else:
        assert found.amount is None
        assert (output or "targets.small.max_tokens") in str(found.problem)


def test_the_settings_of_a_target_are_sent_too() -> None:
    small = rule(max_tokens=5, settings={"stop": ["x" * 100]})
    request = InvokeRequest(question="hi")
    assert (small.bound(request, 1000).amount or 0) >= (1100 + ADDED_TOKENS) * IN + 5 * OUT


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (None, turn(IMAGE)),
        (None, turn({"image_url": {"url": "data:,"}})),
        ("chat", turn(IMAGE)),
        ("chat", {"messages": [{"role": "assistant", "audio": {"id": "x"}}]}),
        ("chat", turn({"type": "file", "file": {}}, role="tool", tool_call_id="x")),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]}),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("messages", turn({"type": "document", "source": {}})),
        ("messages", turn(result_of({"type": "image"}))),
    ],
)
def test_what_is_no_text_is_bounded_by_what_the_model_reads(api: ApiName | None, body: dict[str, Any]) -> None:
    unbounded = bound(api, body, max_tokens=5)
    assert unbounded.amount is None
    assert "targets.small.max_input_tokens" in str(unbounded.problem)
    assert bound(api, body, max_tokens=5, max_input_tokens=70_000).amount == 70_000 * IN + 5 * OUT


CALL = {"type": "function", "function": {"arguments": "{}"}}
CALLED = [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "x", "content": "4"}]


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat", turn({"type": "text", "text": "a"}, {"text": "b"})),
        ("chat", {"messages": CALLED}),
        ("messages", turn({"type": "tool_use", "input": {"type": "photo"}}, role="assistant")),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "x", "output": "4"}]}),
    ],
)
def test_text_is_text_whatever_its_parts(api: ApiName, body: dict[str, Any]) -> None:
    assert bound(api, body, max_tokens=5).amount == (1000 + ADDED_TOKENS) * IN + 5 * OUT
    assert bound(api, body, max_tokens=5, max_input_tokens=900).amount == 900 * IN + 5 * OUT


LONG = {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.parametrize(
    ("api", "body", "name"),
    [
        ("chat", {"service_tier": "priority"}, "service_tier"),
        ("chat", {"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ("chat", {"prompt": {"id": "pmpt_1"}}, "prompt"),
        ("completions", {"prompt": {"id": "pmpt_1"}}, "prompt"),
        ("responses", {"previous_response_id": "r"}, "previous_response_id"),
        ("responses", {"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ("messages", {"tools": [{"type": "bash_20250124"}]}, "tools.0.type"),
        ("messages", {"speed": "fast"}, "speed"),
        ("messages", {"cache_control": LONG}, "cache_control.ttl"),
        ("messages", {"system": [{"type": "text", "cache_control": LONG}]}, "cache_control.ttl"),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 9000}}, "thinking.budget_tokens"),
        (None, {"question": "x", "settings": {"extraBody": {"n": 3}}}, "n"),
        (None, {"question": "x", "settings": {"serviceTier": "flex"}}, "erviceTier"),
        (None, turn({"text": "x", "cache_control": LONG}), "cache_control.ttl"),
    ],
)
def test_what_has_an_unknown_effect_on_the_price_is_named(api: ApiName | None, body: dict[str, Any], name: str) -> None:
    asked = {} if api is None else {"responses": {"input": "x"}, "completions": {}}.get(api, {"messages": MESSAGES})
    found = bound(api, {**asked, **body}, max_tokens=5)
    assert found.amount is None
    assert name in str(found.problem)


def test_a_header_of_unknown_effect_is_named() -> None:
    body = {"messages": MESSAGES, "max_tokens": 5}
    assert "anthropic-beta" in str(bound("messages", body, {"anthropic-beta": "context-1m"}).problem)
    assert bound("messages", body, {"anthropic-version": "2023-06-01"}).amount is not None


def test_an_answer_without_a_limit_counts_as_its_estimate_which_is_no_bound() -> None:
    found = bound("chat", {"messages": MESSAGES}, output_estimate=7)
    assert (found.amount, found.is_estimate) == ((1000 + ADDED_TOKENS) * IN + 7 * OUT, True)
    limited = bound("chat", {"messages": MESSAGES, "max_tokens": 5}, output_estimate=7)
    assert (limited.amount, limited.is_estimate) == ((1000 + ADDED_TOKENS) * IN + 5 * OUT, False)
    assert bound("chat", {"messages": MESSAGES, "max_tokens": 0}, output_estimate=7).amount is None
    terms = rule(output_estimate=7).terms()
    assert (terms.max_tokens, terms.is_estimate) == (7, True)
    terms = rule(output_estimate=7, max_tokens=5).terms()
    assert (terms.max_tokens, terms.is_estimate) == (5, False)


def test_the_dearest_tier_and_kind_of_a_token_counts() -> None:
    price = {**PRICE, "cached_input_per_million": 3, "cache_write_per_million": 2}
    found = bound("chat", {"messages": MESSAGES, "max_tokens": 5}, price=price)
    assert found.amount == (1000 + ADDED_TOKENS) * 3 * IN + 5 * OUT
    above = PriceTier(above_input_tokens=10, input_per_million=Decimal(4), output_per_million=Decimal(9))
    tiers = Price(input_per_million=Decimal(1), output_per_million=Decimal(2), tiers=[above])
    assert tiers.most(10, 10) == Decimal(30) / 1_000_000
    assert tiers.most(11, 10) == Decimal(134) / 1_000_000


def test_input_cached_for_an_hour_is_bounded_where_its_price_is_known() -> None:
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {"system": [marked], "messages": MESSAGES, "max_tokens": 5}
    found = bound("messages", body, price={**PRICE, "cache_write_1h_per_million": 2})
    assert found.amount == (1000 + ADDED_TOKENS) * 2 * IN + 5 * OUT
    for ttl in ("2h", ["1h"]):
        marked["cache_control"] = {"type": "ephemeral", "ttl": ttl}
        assert "cache_control.ttl" in str(bound("messages", body, price={**PRICE, "cache_write_1h_per_million": 2}))


@pytest.mark.parametrize(
    ("target", "amount", "key"),
    [
        ({"provider": "command", "command": ["x"], "price": {"per_call": 0.02}}, 2 * 10**10, ""),
        ({"provider": "mock", "price": None}, None, "targets.small.price"),
        ({"provider": "command", "command": ["x"]}, None, "targets.small.price.per_call"),
        ({"provider": "pydantic-ai", "model": "xai:grok-4", "max_tokens": 5}, None, "xai:grok-4"),
        ({"provider": "pydantic-ai", "model": "gateway/bedrock:x", "max_tokens": 5}, None, "gateway/bedrock:x"),
    ],
)
def test_programs_cost_what_a_call_costs_and_others_need_a_price(
    target: dict[str, Any], amount: int | None, key: str
) -> None:
    fields = {"model": None, "base_url": None, **target}
    found = rule(**fields).bound(InvokeRequest(question="hi"), 1000)
    assert found.amount == amount
    assert key in str(found.problem)


def test_a_request_that_is_refused_costs_nothing() -> None:
    assert rule(max_tokens=5).bound(None, 1000) == CostBound(0)


_PRICES = st.decimals(0, 1000, places=4)


@given(data=st.data(), texts=st.lists(st.text(max_size=40), min_size=1, max_size=4), limit=st.integers(1, 5000))
def test_no_usage_within_the_bounds_costs_more(data: st.DataObject, texts: list[str], limit: int) -> None:
    """Each byte is a token, each kind of token has a price of its own, and each answer is as long as it may be."""
    names = [*PRICE, "cached_input_per_million", "cache_write_per_million"]
    price = {name: data.draw(_PRICES, name) for name in names}
    small = rule(max_tokens=limit, price={**price, "per_call": data.draw(_PRICES, "per_call")})
    request = ApiRequest("chat", json_text({"messages": [{"role": "user", "content": text} for text in texts]}))
    asked = json.dumps([{"role": "user", "content": text} for text in texts], ensure_ascii=False).encode(
        errors="replace"
    )
    tokens = data.draw(st.integers(0, len(asked) + ADDED_TOKENS), "input")
    cached = data.draw(st.integers(0, tokens), "cached")
    written = data.draw(st.integers(0, tokens - cached), "written")
    usage = TokenUsage(
        input=tokens, output=data.draw(st.integers(0, limit), "output"), cached=cached, cache_write=written
    )
    cost, most = small.price.of_call(usage), small.bound(request, len(request.to_wire())).amount
    assert cost is not None
    assert most is not None
    assert picodollars(cost) <= most


@pytest.mark.parametrize(
    "target",
    [
        {"max_tokens": 300},
        {"max_tokens": 300, "max_input_tokens": 900, "settings": {"extra_body": {"max_completion_tokens": 400}}},
        {"max_tokens": 300, "price": {**PRICE, "cache_write_per_million": 1.25, "per_call": 0.01}},
        {"model": "claude-sonnet-4-5", "provider": "anthropic", "base_url": None, "price": None, "max_tokens": 9},
        {"max_tokens": None},
        {"price": None, "max_tokens": 300},
        {"provider": "mock", "model": None, "base_url": None, "price": {"per_call": 0.5}},
        {"provider": "target", "model": None, "base_url": None, "price": None, "child_session": {"targets": ["a"]}},
    ],
)
@pytest.mark.parametrize("size", [100, 10**6])
def test_what_is_told_of_a_target_gives_the_same_bound(target: dict[str, Any], size: int) -> None:
    found = rule(**target)
    assert found.terms().bound(size) == found.bound(InvokeRequest(question="hi"), size).amount


def test_what_a_call_of_an_agent_can_cost_is_told_with_its_own_calls() -> None:
    child = {"targets": ["a"], "max_cost_usd": 0.25}
    hosted = rule(provider="target", model=None, base_url=None, child_session=child, price={"per_call": 0.5})
    assert hosted.bound(InvokeRequest(question="hi"), 100).amount == picodollars(0.5)
    assert hosted.terms().bound(100) == picodollars(0.75)


def test_an_agent_has_no_bound_where_what_it_calls_through_others_has_none() -> None:
    def agent(*callees: str) -> dict[str, Any]:
        return {"provider": "target", "price": {"per_call": 0.5}, "child_session": {"targets": [*callees]}}

    unbound = {"provider": "openai", "model": "m", "base_url": "http://localhost/v1", "price": PRICE}
    fields = {
        "bound": {**unbound, "max_tokens": 9},
        "unbound": unbound,
        "priceless": {**unbound, "price": None, "max_tokens": 9},
        "well": agent("bound", "elsewhere"),
        "ill": agent("bound", "unbound"),
        "poor": agent("priceless"),
        "deep": agent("ill"),
        "round": agent("round", "well"),
    }
    targets = {name: TARGET_MODELS[each["provider"]].model_validate(each) for name, each in fields.items()}
    rules = cost_rules(targets, {name: target_price(target) for name, target in targets.items()})
    told = {name: (rule.terms().bound(0) is not None, rule.terms().problem or "") for name, rule in rules.items()}
    assert [name for name, (is_bound, _) in told.items() if is_bound] == ["bound", "well", "round"]
    assert "targets.unbound.max_tokens" in told["ill"][1]
    assert "targets.priceless.price" in told["poor"][1]
    assert "targets.unbound.max_tokens" in told["deep"][1]
