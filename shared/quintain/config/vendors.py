"""The vendors and servers that are asked in OpenAI's API, by the name that ``provider`` has for each. No I/O.

Where each is and what it has, by its own documentation: learn.microsoft.com/azure/foundry/openai/api-version-lifecycle,
docs.cohere.com/docs/compatibility-api, api-docs.deepseek.com, ai.google.dev/gemini-api/docs/openai,
console.groq.com/docs/openai, docs.mistral.ai/api, docs.ollama.com/api/openai-compatibility,
openrouter.ai/docs/api/reference/overview, docs.together.ai/docs/openai-api-compatibility,
docs.vllm.ai/en/stable/serving/openai_compatible_server, docs.x.ai/docs/api-reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

#: The endpoints of OpenAI's API.
OpenAIEndpoint = Literal["chat", "responses", "completions", "embeddings"]
OPENAI_ENDPOINTS: Final[tuple[OpenAIEndpoint, ...]] = ("chat", "responses", "completions", "embeddings")

#: The values of ``provider`` that mean a model behind OpenAI's API.
OpenAIVendor = Literal[
    "openai", "azure", "cohere", "deepseek", "google", "groq", "mistral", "ollama", "openrouter", "together", "vllm",
    "xai",
]  # fmt: skip


class Vendor(NamedTuple):
    """A vendor with OpenAI's API.

    ``base_url`` is None where each customer has an address of their own. ``key`` is the environment variable of its
    key, if it takes one. ``price_list`` is its name in the list of prices, where that is another one.
    ``takes_stream_options`` is False where a stream has its usage without being asked, and ``stream_options`` is an
    error.
    """

    base_url: str | None
    key: str | None
    apis: tuple[OpenAIEndpoint, ...]
    price_list: str | None = None
    takes_stream_options: bool = True


VENDORS: Final[Mapping[str, Vendor]] = {
    "openai": Vendor("https://api.openai.com/v1", "OPENAI_API_KEY", OPENAI_ENDPOINTS),
    "azure": Vendor(None, "AZURE_OPENAI_API_KEY", OPENAI_ENDPOINTS),
    "cohere": Vendor("https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY", ("chat", "embeddings")),
    "deepseek": Vendor("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", ("chat",)),
    "google": Vendor(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", ("chat", "embeddings")
    ),
    "groq": Vendor("https://api.groq.com/openai/v1", "GROQ_API_KEY", ("chat", "responses")),
    "mistral": Vendor(
        "https://api.mistral.ai/v1", "MISTRAL_API_KEY", ("chat", "embeddings"), takes_stream_options=False
    ),
    "ollama": Vendor("http://127.0.0.1:11434/v1", None, ("chat", "completions", "embeddings")),
    "openrouter": Vendor("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", OPENAI_ENDPOINTS),
    "together": Vendor("https://api.together.xyz/v1", "TOGETHER_API_KEY", ("chat", "completions", "embeddings")),
    "vllm": Vendor("http://127.0.0.1:8000/v1", None, OPENAI_ENDPOINTS),
    "xai": Vendor("https://api.x.ai/v1", "XAI_API_KEY", ("chat", "responses"), price_list="x-ai"),
}

#: The environment variable of each vendor's key, by the value of ``provider``.
KEY_VARIABLES: Final[Mapping[str, str]] = {
    "anthropic": "ANTHROPIC_API_KEY",
    **{name: vendor.key for name, vendor in VENDORS.items() if vendor.key is not None},
}
