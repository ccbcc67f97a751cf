"""A model of each vendor with OpenAI's API is asked at its address with its key, and what that vendor sends is read.

The usages and errors are those of the vendors' documentation, or of what their users reported of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import SecretStr

from quintain.config.loader import Config, load_config
from quintain.config.prices import list_source, target_price
from quintain.config.targets import TARGET_MODELS, OpenAITarget
from quintain.config.vendors import KEY_VARIABLES, VENDORS
from quintain.contracts.invoke import TokenUsage
from quintain.errors import ConfigError
from quintain_worker.providers.factory import build_provider
from quintain_worker.providers.provider import Delta, Provider, ProviderContext
from support.model_calls import call, failed_call, text_of, whole_and_streamed
from support.model_server import ModelServer, ScriptedResponse, StreamedResponse
from support.model_streams import event
from support.model_wires import KEY


class Sent(NamedTuple):
    """What a vendor sends: the usage of an answer, the tokens that it means, and a refusal with the words in it."""

    usage: dict[str, Any]
    tokens: TokenUsage
    refusal: object
    words: str


def counted(given: int, output: int, total: int | None = None, **more: object) -> dict[str, Any]:
    return {"prompt_tokens": given, "completion_tokens": output, "total_tokens": total or given + output, **more}


def openai_error(message: str, **more: object) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


def config_of(folder: Path, target: str) -> Config:
    file = folder / "quintain.yaml"
    file.write_text(f"targets: {{it: {{{target}}}}}")
    return load_config(file)


PLAIN = Sent(counted(5, 2), TokenUsage(input=5, output=2), openai_error("slow down", code="rate_limit"), "slow down")
SENT = {
    "openai": PLAIN,
    "azure": Sent(
        counted(5, 2, prompt_tokens_details={"cached_tokens": 4, "audio_tokens": 0}),
        TokenUsage(input=5, output=2, cached=4),
        openai_error("exceeded call rate limit of your current tier", code="429"),
        "exceeded call rate limit",
    ),
    "cohere": PLAIN._replace(refusal={"id": "1", "message": "You are using a Trial key"}, words="Trial key"),
    "deepseek": Sent(
        counted(
            5, 2, prompt_cache_hit_tokens=4, prompt_cache_miss_tokens=1, prompt_tokens_details={"cached_tokens": 4}
        ),
        TokenUsage(input=5, output=2, cached=4),
        openai_error("Rate limit reached", type="unknown_error", param=None, code="invalid_request_error"),
        "Rate limit reached",
    ),
    # What it thought stands in the total alone, and is billed as output.
    "google": Sent(
        counted(20, 151, 553),
        TokenUsage(input=20, output=533),
        [{"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}],
        "exceeded your current quota",
    ),
    "groq": Sent(
        counted(5, 2, queue_time=0.037, prompt_time=0.0006, completion_time=0.4, total_time=0.4),
        TokenUsage(input=5, output=2),
        openai_error("Rate limit reached for model", type="tokens", code="rate_limit_exceeded"),
        "Rate limit reached for model",
    ),
    "mistral": PLAIN._replace(
        refusal={"object": "error", "message": "Requests rate limit exceeded", "type": "rate_limited", "code": "1300"},
        words="Requests rate limit exceeded",
    ),
    "ollama": PLAIN,
    "openrouter": Sent(
        counted(5, 2, cost=0.0001, is_byok=False, completion_tokens_details={"reasoning_tokens": 0}),
        TokenUsage(input=5, output=2, reasoning=0),
        openai_error("Provider returned error", code=429, metadata={"provider_name": "one"}),
        "Provider returned error",
    ),
    "together": PLAIN,
    "vllm": PLAIN._replace(
        refusal={"object": "error", "message": "too many", "type": "RateLimit", "param": None, "code": 429},
        words="too many",
    ),
    "xai": Sent(
        counted(32, 9, 135, completion_tokens_details={"reasoning_tokens": 94, "accepted_prediction_tokens": 0}),
        TokenUsage(input=32, output=103, reasoning=94),
        {"code": "Some resource has been exhausted", "error": "Too many requests for team"},
        "Too many requests for team",
    ),
}


def provider_at(server: ModelServer, vendor: str) -> Provider:
    fields = {"provider": vendor, "model": "m", "base_url": f"{server.url}/v1", "api_key": SecretStr(KEY)}
    return build_provider("it", TARGET_MODELS[vendor].model_validate(fields), ProviderContext(Path.cwd(), {}))


@whole_and_streamed
@pytest.mark.parametrize("vendor", VENDORS)
async def test_an_answer_is_read_with_all_tokens_that_are_billed(
    server: ModelServer, vendor: str, is_streamed: bool
) -> None:
    usage = SENT[vendor].usage
    begin = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "finish_reason": "stop"}
    if is_streamed:
        chunks = [
            {**begin, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Paris"}}]},
            {**begin, "choices": [{**choice, "delta": {}}], "usage": usage if vendor == "mistral" else None},
            *([] if vendor == "mistral" else [{**begin, "choices": [], "usage": usage}]),
        ]
        server.set_responses(StreamedResponse(events=[b": PROCESSING\n\n", *map(event, chunks), event("[DONE]")]))
    else:
        body = {**begin, "choices": [{**choice, "message": {"role": "assistant", "content": "Paris"}}], "usage": usage}
        server.set_responses(ScriptedResponse(body=body))
    heard = list[Delta]()
    answer = await call(provider_at(server, vendor), heard=heard if is_streamed else None)
    assert (answer.text, answer.token_usage) == ("Paris", SENT[vendor].tokens)
    assert text_of(heard) == ("Paris" if is_streamed else "")
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    # Mistral answers 422 to what it does not know.
    options = {"stream_options": {"include_usage": True}} if is_streamed and vendor != "mistral" else {}
    own = {"model": "m", "messages": [{"role": "user", "content": "q"}], **({"stream": True} if is_streamed else {})}
    assert request.body == {**own, **options}


@pytest.mark.parametrize("vendor", VENDORS)
async def test_a_refusal_is_told_in_the_vendors_words_with_its_wait(server: ModelServer, vendor: str) -> None:
    body = json.dumps(SENT[vendor].refusal).encode()
    server.set_responses(ScriptedResponse(status=429, headers={"retry-after": "7"}, body=body))
    failure = await failed_call(provider_at(server, vendor))
    assert (failure.retryable, failure.fault.charged, failure.retry_after_seconds) == (True, False, 7)
    assert SENT[vendor].words in failure.fault.message


def test_each_vendor_has_its_address_and_asks_for_its_key(tmp_path: Path) -> None:
    for vendor in VENDORS.keys() - {"azure"}:
        config = config_of(tmp_path, f"provider: {vendor}, model: m")
        variables = [KEY_VARIABLES[vendor]] if vendor in KEY_VARIABLES else []
        target = config.resolve(dict.fromkeys(variables, KEY)).targets["it"]
        assert isinstance(target, OpenAITarget)
        assert (target.url, list(config.variable_names)) == (VENDORS[vendor].base_url, variables)
        assert target.apis == (VENDORS[vendor].apis)


@pytest.mark.parametrize(
    ("provider", "base_url", "takes"),
    [
        ("openai", None, True), ("openai", "https://api.mistral.ai/v1", False),
        ("mistral", "https://proxy.example/v1", False), ("groq", None, True),
    ],
)  # fmt: skip
def test_a_vendor_that_refuses_stream_options_is_known_by_its_name_and_its_host(
    provider: str, base_url: str | None, takes: bool
) -> None:
    target = TARGET_MODELS[provider].model_validate({"provider": provider, "model": "m", "base_url": base_url})
    assert isinstance(target, OpenAITarget)
    assert target.takes_stream_options is takes


@pytest.mark.parametrize(
    ("field", "more"), [("base_url", ""), ("api_key", ", base_url: 'https://a.openai.azure.com/openai/v1'")]
)
def test_azure_needs_the_address_and_the_key_of_a_resource(tmp_path: Path, field: str, more: str) -> None:
    with pytest.raises(ConfigError, match=f"targets.it: {field}: "):
        config_of(tmp_path, f"provider: azure, model: m{more}")


@pytest.mark.parametrize(
    ("vendor", "model"),
    [
        ("azure", "gpt-4o"), ("cohere", "command-r-plus"), ("deepseek", "deepseek-chat"),
        ("google", "gemini-2.5-flash"), ("groq", "llama-3.1-8b-instant"), ("mistral", "mistral-large-latest"),
        ("openrouter", "openai/gpt-4o-mini"), ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo"),
        ("xai", "grok-3"),
    ],
)  # fmt: skip
def test_a_vendors_models_have_their_list_price(vendor: str, model: str) -> None:
    given = {"base_url": "https://a.openai.azure.com/openai/v1", "api_key": "k"} if vendor == "azure" else {}
    price = target_price(TARGET_MODELS[vendor].model_validate({"provider": vendor, "model": model, **given}))
    assert price is not None
    assert (price.source, price.input_per_million > 0) == (list_source(), True)
    assert price.failed_tries == ("free" if vendor == "openrouter" else None)
