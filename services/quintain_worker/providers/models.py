"""A model behind a provider's API: one request per try, sent as it was written, and read as it was answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx2
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from quintain.contracts.invoke import InvokeRequest, InvokeSettings, TokenUsage
from quintain_worker.port import Answer
from quintain_worker.providers.conversation import Turn, refusal, refuse_settings, turns_of
from quintain_worker.providers.failures import failure_of

#: Sent where a server asks for no key: the libraries insist on one.
NO_KEY = "no-key-is-set"

#: An evaluation's words are sent and answered byte for byte. The library would otherwise put a zero-width joiner
#: into chat-template tokens such as ``<|im_start|>`` on their way to models it takes for open-weight ones (and
#: take it out of answers), and cut what stands between ``<think>`` tags out of an answer's text.
VERBATIM = ModelProfile(
    may_tokenize_special_tokens_in_content=False,
    thinking_tags=("\x00quintain: no tag\x00", "\x00quintain: no end tag\x00"),
)

_CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a provider's API can honour. ``settings`` are field names of `InvokeSettings`."""

    provider: str
    settings: frozenset[str]
    #: Whether a system message may come later than first, and a message be empty.
    late_system: bool = True
    empty_text: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the target says where a request says nothing."""

    temperature: float | None
    max_tokens: int | None


def http_client(at_once: int) -> httpx2.AsyncClient:
    """One target's connections, kept alive. A call's own deadline bounds it; a redirect is not followed, as it
    would take the key elsewhere."""
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=at_once, keepalive_expiry=_KEEPALIVE_SECONDS
        ),
        follow_redirects=False,
    )


class ModelProvider:
    """Asks a model once per call; the library's own retries are off."""

    def __init__(self, model: Model, client: httpx2.AsyncClient, *, dialect: Dialect, defaults: Defaults) -> None:
        self._model, self._client = model, client
        self._dialect, self._defaults = dialect, defaults

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float) -> Answer:
        """The model's answer, within the timeout. Raises `ProviderFailure`."""
        refuse_settings(request.settings, honoured=self._dialect.settings, who=self._dialect.provider)
        messages = _messages(turns_of(request), self._dialect)
        settings = _settings(request.settings or InvokeSettings(), self._defaults)
        settings["request_timeout"] = timeout_seconds
        try:
            response = await model_request(self._model, messages, model_settings=settings)
        except Exception as error:
            # A strange body makes the library raise anything at all. Not chained: its words quote the provider's.
            raise failure_of(error, self._dialect.provider) from None
        return _answer(response)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _messages(turns: Sequence[Turn], dialect: Dialect) -> list[ModelMessage]:
    for turn in turns:
        if turn.role == "tool":
            raise refusal(f"{turn.field}.role", "this target takes no tool messages")
        if not turn.text and not dialect.empty_text:
            raise refusal(f"{turn.field}.content", f"{dialect.provider} takes no empty message")
    first = next((index for index, turn in enumerate(turns) if turn.role != "system"), len(turns))
    late = next((turn for turn in turns[first:] if turn.role == "system"), None)
    if late is not None and not dialect.late_system:
        raise refusal(f"{late.field}.role", f"{dialect.provider} takes a system message only at the start")
    # The leading system messages share one request: apart, the library would take the later ones for late.
    leading = [SystemPromptPart(turn.text) for turn in turns[:first]]
    opening: list[ModelMessage] = [ModelRequest(leading)] if leading else []
    return opening + [_message(turn) for turn in turns[first:]]


def _message(turn: Turn) -> ModelMessage:
    if turn.role == "assistant":
        return ModelResponse([TextPart(turn.text)])
    if turn.role == "system":
        return ModelRequest([SystemPromptPart(turn.text)])
    return ModelRequest([UserPromptPart(turn.text if len(turn.texts) == 1 else list(turn.texts))])


def _settings(asked: InvokeSettings, defaults: Defaults) -> ModelSettings:
    settings = ModelSettings(max_retries=0)
    temperature = defaults.temperature if asked.temperature is None else asked.temperature
    if temperature is not None:
        settings["temperature"] = temperature
    max_tokens = defaults.max_tokens if asked.max_tokens is None else asked.max_tokens
    if max_tokens is not None:
        settings["max_tokens"] = max_tokens
    if asked.seed is not None:
        settings["seed"] = asked.seed
    if asked.stop is not None:
        settings["stop_sequences"] = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    if asked.response_format is not None:
        settings["extra_body"] = {"response_format": asked.response_format}
    return settings


def _answer(response: ModelResponse) -> Answer:
    details = response.provider_details or {}
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    refused = details.get("refusal")
    if not texts and isinstance(refused, str):
        # A refusal is what the model said, and an evaluation wants to read it.
        texts = [refused]
    reason = response.finish_reason or details.get("finish_reason")
    return Answer(
        text="".join(texts),
        token_usage=_usage(response.usage),
        model=response.model_name,
        finish_reason=None if reason is None else str(reason),
    )


def _usage(usage: RequestUsage) -> TokenUsage | None:
    if not usage.has_values():
        return None
    return TokenUsage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cached=usage.cache_read_tokens or None,
        reasoning=usage.details.get("reasoning_tokens"),
    )
