"""What is marked for a provider's cache of prompts: of which requests, where, and never beside a caller's own marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quintain.config.prices import target_price
from quintain.config.targets import TARGET_MODELS, AnthropicTarget
from quintain.contracts.api_request import ApiRequest, json_text
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import Message
from quintain.contracts.money import picodollars
from quintain_worker.providers.model_api import model_provider
from quintain_worker.providers.model_requests import MIN_CACHED_CHARACTERS, RequestBuilder
from quintain_worker.providers.provider import ProviderContext
from support.priced_provider import PRICE, PricedProvider, serving

LONG = "x" * MIN_CACHED_CHARACTERS
MARK = {"type": "ephemeral"}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]
TURNS = [
    {"role": "user", "content": "Find it."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "a", "arguments": "{}"}]},
    {"role": "tool", "content": LONG, "tool_call_id": "1"},
]


def asked(request: Message | ApiRequest, *, provider: str = "anthropic", **fields: Any) -> dict[str, Any]:
    """The body of the provider's request."""
    target = TARGET_MODELS[provider].model_validate({"provider": provider, "model": "m", "api_key": "k", **fields})
    builder = RequestBuilder(target)  # type: ignore[arg-type]
    call = builder.of_api_request(request) if isinstance(request, ApiRequest) else builder.of_conversation(request)  # type: ignore[arg-type]
    found: dict[str, Any] = json.loads(call.body)
    return found


def marks(value: Any, place: str = "") -> dict[str, Any]:
    """The marks of a body, by their places."""
    if isinstance(value, list):
        return {name: mark for at, each in enumerate(value) for name, mark in marks(each, f"{place}[{at}]").items()}
    if not isinstance(value, dict):
        return {}
    own = {place: value["cache_control"]} if "cache_control" in value else {}
    return own | {name: mark for key, each in value.items() for name, mark in marks(each, f"{place}.{key}").items()}


def agents(**fields: Any) -> InvokeRequest:
    request = {"messages": TURNS, "systemPrompt": "Be brief.", "settings": {"tools": TOOLS}, **fields}
    return InvokeRequest.model_validate(request)


def test_an_agents_tools_system_and_last_turn_are_marked() -> None:
    found = asked(agents())
    assert marks(found) == {".tools[1]": MARK, ".system[0]": MARK, ".messages[2].content[0]": MARK}
    assert found["system"][0]["text"] == "Be brief."


def test_a_long_system_prompt_is_marked_without_the_question_that_follows_it() -> None:
    found = asked(InvokeRequest(question="q", system_prompt=LONG))
    assert marks(found) == {".system[0]": MARK}
    assert found["messages"][0]["content"] == "q"


@pytest.mark.parametrize(
    "request_",
    [
        InvokeRequest(question="q", system_prompt=LONG[1:]),
        InvokeRequest(question=LONG),
        InvokeRequest.model_validate({"question": "q", "settings": {"tools": TOOLS}}),
    ],
    ids=["short", "question", "short-tools"],
)
def test_what_is_short_or_not_repeated_is_not_marked(request_: InvokeRequest) -> None:
    assert marks(asked(request_)) == {}


def test_the_setting_switches_it_off_and_is_in_no_request() -> None:
    for setting in ("off", False):
        assert marks(asked(agents(), settings={"cache_prompt": setting})) == {}
    found = asked(agents(), settings={"cache_prompt": "auto"})
    assert len(marks(found)) == 3
    assert "cache_prompt" not in json.dumps(found)


def test_a_callers_own_marks_stay_as_they_are() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}
    own = [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": hour}]}]
    assert marks(asked(agents(messages=own))) == {".messages[0].content[0]": hour}
    quoted = [{"role": "user", "content": json.dumps({"cache_control": LONG})}]
    assert len(marks(asked(agents(messages=quoted)))) == 3


def test_a_callers_own_body_stays_as_it_is_and_one_in_other_words_is_marked() -> None:
    body = {"messages": [{"role": "user", "content": "q"}], "system": LONG, "max_tokens": 5}
    assert marks(asked(ApiRequest("messages", json_text(body), {}))) == {}
    chat = {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "q"}]}
    assert marks(asked(ApiRequest("chat", json_text(chat), {}))) == {".system[0]": MARK}


def test_other_vendors_get_no_marks() -> None:
    assert marks(asked(agents(), provider="openai")) == {}


def test_thinking_has_no_mark() -> None:
    last = {"role": "assistant", "content": "", "reasoning": [{"text": LONG, "signature": "s"}]}
    turns = [{"role": "user", "content": "q"}, {**last, "toolCalls": None}]
    found = asked(agents(messages=turns))
    assert set(marks(found)) == {".tools[1]", ".system[0]"}


async def test_what_an_agents_turns_cost_is_what_the_provider_bills() -> None:
    provider, turns = PricedProvider(seconds=0), list[dict[str, Any]]()
    costs, usages = [], []
    async with serving(provider) as url:
        target = AnthropicTarget.model_validate(
            {"provider": "anthropic", "model": "m", "base_url": url, "max_tokens": 50, "price": PRICE}
        )
        model, price = model_provider("it", target, ProviderContext(Path.cwd(), {})), target_price(target)
        assert price is not None
        hour = {"type": "text", "text": LONG * 3, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        raw = {"messages": [{"role": "user", "content": [hour]}], "max_tokens": 5}
        for turn in ("Begin.", "Go on.", LONG * 3, "End.", None):
            turns += [{"role": "user", "content": turn}]
            request = agents(messages=turns) if turn else ApiRequest("messages", json_text(raw), {})
            answer = await model.answer(request, timeout_seconds=10)
            turns += [{"role": "assistant", "content": answer.text}]
            usages.append(answer.token_usage)
            costs.append(picodollars(price.of_call(answer.token_usage) or 0))
        await model.close()
    assert sum(costs) == provider.bill
    read, written, for_an_hour = (
        [getattr(usage, kind) or 0 for usage in usages] for kind in ("cached", "cache_write", "cache_write_1h")
    )
    # Each turn reads what the one before wrote, once the prompt is long enough.
    assert read == [0, 0, 0, written[2], 0]
    assert (written[:2], for_an_hour[:4], for_an_hour[4]) == ([0, 0], [0] * 4, written[4])
    assert written[4] > 1024
