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


HOUR = {"type": "ephemeral", "ttl": "1h"}
OWN = [{"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": HOUR}]}]
THOUGHT = {"role": "assistant", "content": "", "reasoning": [{"text": LONG, "signature": "s"}], "toolCalls": None}
QUESTION = {"role": "user", "content": "q"}
ALL = {".tools[1]": MARK, ".system[0]": MARK, ".messages[2].content[0]": MARK}
QUOTED = [{"role": "user", "content": json.dumps({"cache_control": LONG})}]


@pytest.mark.parametrize(
    ("request_", "fields", "expected"),
    [
        (agents(), {}, ALL),
        (InvokeRequest(question="q", system_prompt=LONG), {}, {".system[0]": MARK}),
        (InvokeRequest(question="q", system_prompt=LONG[1:]), {}, {}),
        (InvokeRequest(question=LONG), {}, {}),
        (InvokeRequest.model_validate({"question": "q", "settings": {"tools": TOOLS}}), {}, {}),
        (agents(), {"settings": {"cache_prompt": "off"}}, {}),
        (agents(), {"settings": {"cache_prompt": False}}, {}),
        (agents(), {"settings": {"cache_prompt": "auto"}}, ALL),
        (agents(messages=OWN), {}, {".messages[0].content[0]": HOUR}),
        (agents(messages=QUOTED), {}, {**dict(list(ALL.items())[:2]), ".messages[0].content[0]": MARK}),
        (ApiRequest("messages", json_text({"messages": [QUESTION], "system": LONG, "max_tokens": 5})), {}, {}),
        (
            ApiRequest("chat", json_text({"messages": [{"role": "system", "content": LONG}, QUESTION]})),
            {},
            {".system[0]": MARK},
        ),
        (agents(), {"provider": "openai"}, {}),
        (agents(messages=[QUESTION, THOUGHT]), {}, dict(list(ALL.items())[:2])),
    ],
    ids=[
        *("agent", "long system prompt", "short", "question", "short tools", "off", "false", "auto", "own marks"),
        *("quoted marks", "own body", "another API", "another vendor", "thinking"),
    ],
)
def test_what_is_repeated_is_marked_beside_no_mark_of_the_caller(
    request_: Message | ApiRequest, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = asked(request_, **fields)
    assert marks(found) == expected
    assert "cache_prompt" not in json.dumps(found)


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
