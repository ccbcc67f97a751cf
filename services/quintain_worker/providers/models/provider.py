"""The model provider: one API request per try, with request and answer unchanged."""

from __future__ import annotations

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

from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from quintain_worker.providers.models.answers import StreamedText, answer_of, is_complete
from quintain_worker.providers.models.capabilities import ApiCapabilities, SettingDefaults
from quintain_worker.providers.models.failures import StreamInterrupted, failure_of
from quintain_worker.providers.models.messages import messages_of
from quintain_worker.providers.models.settings import settings_of
from quintain_worker.providers.provider import OnText, ProviderAnswer

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


def http_client(max_concurrency: int) -> httpx2.AsyncClient:
    """Create the HTTP client of one target, with keep-alive connections.

    There is no read timeout, because each call has its own deadline. Redirects are not followed: they could send the
    API key to another server.
    """
    return httpx2.AsyncClient(
        verify=_tls_context(),
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=max_concurrency, keepalive_expiry=_KEEPALIVE_SECONDS
        ),
        follow_redirects=False,
        event_hooks={"request": [_note_request]},
    )


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The TLS context that all clients share: reading the certificates takes some ten milliseconds for each target."""
    return httpx2.create_ssl_context()


class ModelProvider:
    """Sends each call to a model as one API request; the library's own retries are off."""

    def __init__(
        self, model: Model, client: httpx2.AsyncClient, *, capabilities: ApiCapabilities, defaults: SettingDefaults
    ) -> None:
        self._model, self._client = model, client
        self._capabilities, self._defaults = capabilities, defaults

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Request the model's answer within ``timeout_seconds``, streamed if ``on_text`` is given.

        Raises `ProviderFailure`.
        """
        settings = settings_of(request.settings or InvokeSettings(), self._defaults, self._capabilities)
        messages = messages_of(request, self._capabilities)
        settings["request_timeout"] = timeout_seconds
        http_try = _HttpTry()
        _current_try.set(http_try)
        try:
            if on_text is not None:
                return await self._answer_streamed(messages, settings, on_text)
            return answer_of(await model_request(self._model, messages, model_settings=settings), self._capabilities)
        except Exception as error:
            # An unexpected response body can make the library raise anything. Not chained, because its message quotes
            # the body.
            raise failure_of(error, self._capabilities.provider, is_sent=http_try.is_sent) from None

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._client.aclose()

    async def _answer_streamed(
        self, messages: list[ModelMessage], settings: ModelSettings, on_text: OnText
    ) -> ProviderAnswer:
        streamed_text = StreamedText(on_text)
        async with model_request_stream(self._model, messages, model_settings=settings) as stream:
            async for event in stream:
                streamed_text.add(event)
            response = stream.get()
        if not is_complete(response):
            raise StreamInterrupted
        answer = answer_of(response, self._capabilities)
        streamed_text.finish(answer.text)
        return answer
