"""A model behind a provider's API: one request per try, sent as it was written, and read as it was answered."""

from __future__ import annotations

import httpx2
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings

from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from quintain_worker.port import Answer, Heard
from quintain_worker.providers.dialect import Defaults, Dialect
from quintain_worker.providers.failures import BrokenOff, failure_of
from quintain_worker.providers.model_answers import Pieces, answer_of, is_whole
from quintain_worker.providers.model_messages import messages_of
from quintain_worker.providers.model_settings import settings_of

#: Sent where a server asks for no key: the libraries insist on one.
NO_KEY = "no-key-is-set"

#: An evaluation's words are sent and answered byte for byte. The library would otherwise put a zero-width joiner
#: into chat-template tokens such as ``<|im_start|>`` on their way to models it takes for open-weight ones (and
#: take it out of answers), cut what stands between ``<think>`` tags out of an answer's text, and drop the white
#: space that some models' streams begin with.
VERBATIM = ModelProfile(
    may_tokenize_special_tokens_in_content=False,
    thinking_tags=("\x00quintain: no tag\x00", "\x00quintain: no end tag\x00"),
    ignore_streamed_leading_whitespace=False,
)

_CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 60.0


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

    async def answer(self, request: InvokeRequest, *, timeout_seconds: float, heard: Heard | None = None) -> Answer:
        """The model's answer, within the timeout, streamed where somebody listens. Raises `ProviderFailure`."""
        settings = settings_of(request.settings or InvokeSettings(), self._defaults, self._dialect)
        messages = messages_of(request, self._dialect)
        settings["request_timeout"] = timeout_seconds
        try:
            if heard is not None:
                return await self._streamed(messages, settings, heard)
            return answer_of(await model_request(self._model, messages, model_settings=settings), self._dialect)
        except Exception as error:
            # A strange body makes the library raise anything at all. Not chained: its words quote the provider's.
            raise failure_of(error, self._dialect.provider) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _streamed(self, messages: list[ModelMessage], settings: ModelSettings, heard: Heard) -> Answer:
        pieces = Pieces(heard)
        async with model_request_stream(self._model, messages, model_settings=settings) as stream:
            async for event in stream:
                pieces.add(event)
            response = stream.get()
        if not is_whole(response):
            raise BrokenOff
        answer = answer_of(response, self._dialect)
        pieces.end(answer.text)
        return answer
