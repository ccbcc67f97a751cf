"""The model provider: one API request per try, with request and answer unchanged."""

from __future__ import annotations

import dataclasses
import functools
import ssl
from contextvars import ContextVar
from dataclasses import dataclass

import httpx2
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings

from quintain.config import AnthropicTarget, OpenAITarget
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import ConfigError
from quintain_worker.providers.models.answers import StreamedPieces, answer_of, is_complete, is_refusal
from quintain_worker.providers.models.capabilities import ApiCapabilities
from quintain_worker.providers.models.failures import FailureReader, StreamInterrupted
from quintain_worker.providers.models.messages import ignored_reasoning, messages_of
from quintain_worker.providers.models.settings import settings_of
from quintain_worker.providers.provider import OnText, ProviderAnswer, ProviderFailure

#: API key for servers that need none: the libraries require one.
PLACEHOLDER_API_KEY = "no-key-is-set"

#: Sends prompts and returns answers byte for byte. By default the library puts a zero-width joiner into chat-template
#: tokens such as ``<|im_start|>`` for models it takes for open-weight ones (and removes it from answers), removes the
#: text between ``<think>`` tags from an answer, and drops leading whitespace of some models' streams.
VERBATIM_PROFILE = ModelProfile(
    may_tokenize_special_tokens_in_content=False,
    thinking_tags=("\x00quintain: no tag\x00", "\x00quintain: no end tag\x00"),
    ignore_streamed_leading_whitespace=False,
)

_CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 60.0


@dataclass(slots=True)
class _HttpTry:
    """One try: whether the library handed an HTTP request to the client. Until then no byte was sent."""

    is_sent: bool = False


#: The try of the current task, for the HTTP client's hook.
_current_try: ContextVar[_HttpTry] = ContextVar("current_try")


async def _note_request(_: httpx2.Request) -> None:
    _current_try.get(_HttpTry()).is_sent = True


def http_client(max_concurrency: int, base_url: str) -> httpx2.AsyncClient:
    """Create the HTTP client of one target, with keep-alive connections.

    There is no read timeout, because each call has its own deadline. Redirects are not followed: they could send the
    API key to another server.
    """
    return httpx2.AsyncClient(
        verify=_tls_context(needs_certificates=not base_url.startswith("http://")),
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=max_concurrency, keepalive_expiry=_KEEPALIVE_SECONDS
        ),
        follow_redirects=False,
        event_hooks={"request": [_note_request]},
    )


@functools.cache
def _tls_context(*, needs_certificates: bool) -> ssl.SSLContext:
    """The TLS context that clients share: reading the certificates takes 50 ms of processor time.

    Without them, where a target's URL is ``http://``, it trusts no server.
    """
    return httpx2.create_ssl_context() if needs_certificates else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ModelProvider:
    """Sends each call to a model as one API request; the library's own retries are off."""

    def __init__(
        self,
        name: str,
        target: OpenAITarget | AnthropicTarget,
        model: Model,
        client: httpx2.AsyncClient,
        capabilities: ApiCapabilities,
    ) -> None:
        """Create the provider of the target with this name. Raises `ConfigError` for settings that its API lacks."""
        self._model, self._client = model, client
        self._capabilities = dataclasses.replace(capabilities, allows_image_urls=target.image_urls == "pass")
        self._defaults = target.default_settings
        self._failures = FailureReader(target)
        try:
            settings_of(None, self._defaults, capabilities)
        except ProviderFailure as failure:
            raise ConfigError(f"targets.{name}.{failure.fault.message}") from None

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Request the model's answer within ``timeout_seconds``, streamed if ``on_text`` is given.

        Raises `ProviderFailure`.
        """
        settings, ignored = settings_of(request.settings, self._defaults, self._capabilities)
        messages = messages_of(request, self._capabilities)
        settings["request_timeout"] = timeout_seconds
        http_try = _HttpTry()
        _current_try.set(http_try)
        try:
            if on_text is not None:
                answer = await self._answer_streamed(messages, settings, on_text)
            else:
                response = await model_request(self._model, messages, model_settings=settings)
                answer = answer_of(response, self._capabilities)
        except Exception as error:
            # An unexpected response body can make the library raise anything. Not chained, because its message quotes
            # the body.
            raise self._failures.failure_of(error, is_sent=http_try.is_sent) from None
        return dataclasses.replace(answer, ignored=(*ignored, *ignored_reasoning(request, self._capabilities)))

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._client.aclose()

    async def _answer_streamed(
        self, messages: list[ModelMessage], settings: ModelSettings, on_text: OnText
    ) -> ProviderAnswer:
        streamed_pieces = StreamedPieces(on_text)
        async with model_request_stream(self._model, messages, model_settings=settings) as stream:
            async for event in stream:
                streamed_pieces.add(event)
            response = stream.get()
        if not is_complete(response):
            raise StreamInterrupted
        answer = answer_of(response, self._capabilities)
        if not is_refusal(answer):
            # A refusal is not streamed: only the end of the answer shows that its text is one.
            streamed_pieces.finish(answer.text)
        return answer
