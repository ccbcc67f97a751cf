"""OpenAI's endpoints besides conversations: completions and embeddings.

The model library has no completions and rewrites embeddings, so these go through the official SDK, field by field
(decision 20).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from openai import AsyncOpenAI
from openai._base_client import make_request_options
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai.models.openai._errors import map_api_errors

from quintain.config import OpenAITarget
from quintain.contracts.inputs import CompletionInput, EmbeddingInput, Vector
from quintain.contracts.invoke import InvokeRequest, InvokeSettings, JsonObject, OutputMessage, TokenUsage
from quintain.contracts.strings import replace_surrogates
from quintain_worker.providers.models.capabilities import fields_of_same_name
from quintain_worker.providers.models.failures import FailureReader
from quintain_worker.providers.models.provider import ModelProvider
from quintain_worker.providers.models.settings import extra_fields, with_defaults
from quintain_worker.providers.provider import OnText, ProviderAnswer
from quintain_worker.providers.settings import TakenSettings, Writer, no_fields, take_settings

#: The settings of completions. Which of them a compatible server honours is its own to say.
COMPLETION_WRITERS: Mapping[str, Writer] = {
    **fields_of_same_name("temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias"),
    **fields_of_same_name("frequency_penalty", "presence_penalty", "repetition_penalty"),
    "extra_body": no_fields,
}

EMBEDDING_WRITERS: Mapping[str, Writer] = {"extra_body": no_fields}


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)


class _Usage(_Read):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _CompletionChoice(_Read):
    text: str
    finish_reason: str | None = None
    logprobs: JsonObject | None = None


class _CompletionAnswer(_Read):
    choices: Annotated[list[_CompletionChoice], Field(min_length=1, max_length=1)]
    model: str | None = None
    usage: _Usage | None = None


class _EmbeddedText(_Read):
    embedding: Vector
    index: int


class _EmbeddingAnswer(_Read):
    data: list[_EmbeddedText]
    model: str | None = None
    usage: _Usage | None = None


class EndpointProvider:
    """Answers conversations through the model library, completions and embeddings through the official SDK."""

    def __init__(self, conversations: ModelProvider, target: OpenAITarget, sdk: AsyncOpenAI) -> None:
        self._conversations, self._target, self._sdk = conversations, target, sdk
        self._failures = FailureReader(target)

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Answer within ``timeout_seconds``; only conversations are streamed. Raises `ProviderFailure`."""
        if request.completion is not None:
            return await self._complete(request.completion, request.settings, timeout_seconds)
        if request.embedding is not None:
            return await self._embed(request.embedding, request.settings, timeout_seconds)
        return await self._conversations.answer(request, timeout_seconds=timeout_seconds, on_text=on_text)

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._conversations.close()

    async def _complete(
        self, completion: CompletionInput, settings: InvokeSettings | None, timeout_seconds: float
    ) -> ProviderAnswer:
        sent = completion.model_dump(exclude_none=True)
        taken = _take(settings, self._target, COMPLETION_WRITERS, "openai (completions)", sent)
        try:
            answer = _CompletionAnswer.model_validate(
                await self._post("/completions", {**taken.fields, **sent}, timeout_seconds)
            )
        except Exception as error:
            # An unexpected response body can make the SDK raise anything. Not chained: its message quotes the body.
            raise self._failures.failure_of(error) from None
        [choice] = answer.choices
        text = replace_surrogates(choice.text)
        return ProviderAnswer(
            text=text,
            output=None
            if choice.logprobs is None
            else [OutputMessage(content=text, completion_logprobs=choice.logprobs)],
            token_usage=_token_usage(answer.usage),
            model=answer.model,
            finish_reason=choice.finish_reason,
            ignored=taken.ignored,
        )

    async def _embed(
        self, embedding: EmbeddingInput, settings: InvokeSettings | None, timeout_seconds: float
    ) -> ProviderAnswer:
        sent = embedding.model_dump(exclude_none=True)
        taken = _take(settings, self._target, EMBEDDING_WRITERS, "openai (embeddings)", sent)
        try:
            answer = _EmbeddingAnswer.model_validate(
                await self._post("/embeddings", {**taken.fields, **sent}, timeout_seconds)
            )
            by_index = {item.index: item.embedding for item in answer.data}
            vectors = [by_index[index] for index in range(len(embedding.input))]
        except Exception as error:
            raise self._failures.failure_of(error) from None
        return ProviderAnswer(
            text="",
            token_usage=_token_usage(answer.usage),
            model=answer.model,
            ignored=taken.ignored,
            embeddings=vectors,
        )

    async def _post(self, path: str, fields: JsonObject, timeout_seconds: float) -> object:
        with map_api_errors(self._target.model):
            return await self._sdk.post(
                path,
                cast_to=object,
                body={"model": self._target.model, **fields},
                options=make_request_options(timeout=timeout_seconds),
            )


def _take(
    requested: InvokeSettings | None,
    target: OpenAITarget,
    writers: Mapping[str, Writer],
    provider: str,
    sent: JsonObject,
) -> TakenSettings:
    """Return the fields of the request's settings, and of the target's that this endpoint has."""
    defaults = {name: value for name, value in target.default_settings if name in writers and value is not None}
    settings = with_defaults(requested, InvokeSettings.model_validate(defaults))
    taken = take_settings(settings, writers, provider)
    fields = taken.fields | extra_fields(settings.extra_body or {}, {**taken.fields, **sent})
    return TakenSettings(fields, taken.ignored)


def _token_usage(usage: _Usage | None) -> TokenUsage | None:
    return None if usage is None else TokenUsage(input=usage.prompt_tokens, output=usage.completion_tokens or 0)
