"""Single calls of models over the three wires: who is asked, with what, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from quintain.config.targets import AnthropicTarget, OpenAITarget
from quintain.contracts.api_request import ApiName, ApiRequest, json_text
from quintain.contracts.invoke import InvokeRequest
from quintain_worker.providers.provider import Billing, Delta, Provider, ProviderAnswer, ProviderFailure
from support.model_wires import ANTHROPIC, CHAT, WIRES

QUESTION = InvokeRequest(question="q")

#: The fields of the smallest request of each API.
QUESTIONS: Mapping[ApiName, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "q"}]},
    "responses": {"input": "q"},
    "completions": {"prompt": "q"},
    "embeddings": {"input": "q"},
    "messages": {"messages": [{"role": "user", "content": "q"}], "max_tokens": 9},
}
#: The APIs of conversations, which are translated into each other.
CONVERSATIONS: tuple[ApiName, ...] = ("chat", "responses", "messages")

wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
whole_and_streamed = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def api_request(api: ApiName, **fields: object) -> ApiRequest:
    """The smallest request of an API with more fields."""
    return ApiRequest(api, json_text({**QUESTIONS[api], **fields}))


def api_provider(url: str, api: ApiName, **target: object) -> Provider:
    """A provider that speaks this API."""
    if api == "messages":
        return ANTHROPIC.provider(url, **target)
    return CHAT.provider(url, api=api, **target)


async def call(
    provider: Provider,
    request: InvokeRequest | ApiRequest = QUESTION,
    heard: list[Delta] | None = None,
    *,
    seconds: float = 10,
) -> ProviderAnswer:
    """The answer of a provider that is closed after it; where something is to be heard, it is streamed."""
    listener = None if heard is None else heard.append
    try:
        return await provider.answer(request, timeout_seconds=seconds, on_text=listener)  # type: ignore[arg-type]
    finally:
        await provider.close()


async def failed_call(
    provider: Provider,
    request: InvokeRequest | ApiRequest = QUESTION,
    heard: list[Delta] | None = None,
    *,
    seconds: float = 10,
) -> ProviderFailure:
    """As `call`, of a call that fails."""
    with pytest.raises(ProviderFailure) as caught:
        await call(provider, request, heard, seconds=seconds)
    return caught.value


async def refused_call(provider: Provider, **fields: object) -> str:
    """The sentence of a request that is refused before anything is sent, and costs nothing."""
    failed = await failed_call(provider, InvokeRequest.model_validate({"question": None, **fields}))
    assert (failed.billing, failed.retryable, failed.fault.charged) == (Billing.UNBILLED, False, False)
    return failed.fault.message


def text_of(heard: list[Delta]) -> str:
    """The text that was heard, however it was cut."""
    return "".join(piece for piece in heard if isinstance(piece, str))


def at_the_vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every URL is the vendors' own."""
    for target in (OpenAITarget, AnthropicTarget):
        monkeypatch.setattr(target, "is_vendors_host", property(lambda _: True))


def added_paths(before: object, after: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths of what is in the second JSON value and not in the first, two keys deep."""
    if isinstance(after, dict) and len(path) < 2:
        old = before if isinstance(before, dict) else {}
        for key in after:
            yield from added_paths(old.get(key), after[key], (*path, key))
    elif before != after:
        yield ".".join(path)
