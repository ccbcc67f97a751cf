"""What a request brings to its target besides a conversation: a text to complete, or texts to embed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, StrictBool

from quintain.contracts.message import Message

#: What a request brings to its target; every target answers conversations.
InputKind = Literal["conversation", "completion", "embedding"]

#: Text, or the tokens of a text as the model's tokenizer numbers them.
Prompt = Annotated[str, Field(min_length=1)] | Annotated[list[int], Field(min_length=1)]


class CompletionInput(Message):
    """A text to be completed, for targets whose provider has OpenAI's completions endpoint.

    ``echo`` puts the prompt before the answer, also in its log probabilities. ``logprobs`` is the number of most likely
    tokens at each place. ``max_tokens`` replaces that of the settings, and may be 0.

    Example::

        InvokeRequest(completion=CompletionInput(prompt="2 + 2 = 4", echo=True, logprobs=1, max_tokens=0))
    """

    prompt: Prompt
    suffix: str | None = None
    echo: StrictBool | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None


class EmbeddingInput(Message):
    """Texts to be embedded, for targets whose provider has OpenAI's embeddings endpoint.

    Example::

        InvokeRequest(embedding=EmbeddingInput(input=["What is the capital of France?"]))
    """

    input: Annotated[list[Prompt], Field(min_length=1)]
    dimensions: Annotated[int, Field(gt=0)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


#: The vector of an embedded text: numbers, or 32-bit floats of little-endian order in base64.
Vector = list[FiniteFloat] | str
