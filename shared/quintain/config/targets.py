"""The models of targets and quotas in the configuration file: one frozen pydantic model per provider. No I/O.

A quota is what one provider key may use; targets share it.

The repr and the dump of a target that was loaded from a file show its references, not their values.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, FiniteFloat, SecretStr, ValidationInfo, field_validator, model_validator

from quintain.config.http_targets import HttpTarget
from quintain.config.program_targets import AgentTarget, CommandTarget, PythonTarget
from quintain.config.target_fields import (
    MockUsage,
    Positive,
    StrictModel,
    TargetChildSession,
    TargetFields,
    TargetSettings,
    WatchedTarget,
    is_unresolved,
)
from quintain.config.vendors import VENDORS, OpenAIEndpoint, OpenAIVendor
from quintain.contracts.api_request import ApiName
from quintain.contracts.invoke import InvokeSettings
from quintain.contracts.ledger import TargetCard
from quintain.contracts.money import CostTerms
from quintain.contracts.quota import IMPLIED_ID_PREFIX, MAX_IN_FLIGHT, MAX_PER_MINUTE, QuotaCard, QuotaTerms
from quintain.contracts.values import TargetName

PerMinute = Annotated[FiniteFloat, Field(gt=0, le=MAX_PER_MINUTE)]
InFlight = Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)]


class QuotaConcurrency(StrictModel):
    """The calls in flight of a quota: how many at first, and between which bounds."""

    start: InFlight = 20
    """How many at first; without adaptive it stays at this."""
    min: InFlight = 1
    """The fewest."""
    max: InFlight = 256
    """The most."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.min <= self.start <= self.max:
            raise ValueError(f"min {self.min}, start {self.start} and max {self.max} are not in this order")
        return self


class QuotaConfig(StrictModel):
    """What one provider key may use."""

    requests_per_minute: PerMinute | None = None
    """Requests a minute. If absent, what the provider's headers name, or what is learned."""
    tokens_per_minute: PerMinute | None = None
    """Tokens a minute, of questions and answers. If absent, what the provider's headers name."""
    concurrency: QuotaConcurrency = QuotaConcurrency()
    """The calls in flight."""
    adaptive: bool = True
    """Whether the calls in flight follow what the provider takes."""

    @property
    def terms(self) -> QuotaTerms:
        """The same numbers as they are registered."""
        return QuotaTerms(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            start=self.concurrency.start,
            min=self.concurrency.min,
            max=self.concurrency.max,
            adaptive=self.adaptive,
        )


def quota_of(target: TargetConfig, quotas: Mapping[str, QuotaConfig]) -> QuotaCard | None:
    """Return the quota of a resolved target: the one that it names, else that of its provider, URL, key and model.

    An HTTP endpoint has no model. None for a target that has neither, such as a program, and for one that is not
    adaptive. The id of a quota without a name is an HMAC whose key is the API key, so that it shows nothing of the key.
    """
    if target.quota is not None:
        return QuotaCard(id=target.quota, name=target.quota, terms=quotas[target.quota].terms)
    if not isinstance(target, OpenAITarget | AnthropicTarget | PydanticAITarget | HttpTarget) or not target.adaptive:
        return None
    if isinstance(target, HttpTarget):
        url, key, model = target.url, "\n".join(target.secrets), None
    else:
        # Of pydantic-ai's vendors only the vendor is known where no URL is given.
        url, key, model = target.url or target.model.partition(":")[0], target.key, target.model

    def digest(*parts: str) -> str:
        return hmac.new(key.encode(), "\n".join((target.provider, url, *parts)).encode(), hashlib.sha256).hexdigest()

    # All models of a key show the same part of it.
    words = (f"{target.provider} at {urlsplit(url).hostname or url}", model, f"key {digest()[:4]}")
    quota_id = f"{IMPLIED_ID_PREFIX}{digest(*filter(None, (model,)))[:32]}"
    return QuotaCard(id=quota_id, name=", ".join(filter(None, words)), terms=QuotaTerms())


def card_of(
    name: str,
    target: TargetConfig,
    quotas: Mapping[str, QuotaConfig] | None = None,
    cost: CostTerms | None = None,
) -> TargetCard:
    """Return a resolved target's public description, which never contains a key; without ``quotas`` it has no quota."""
    return TargetCard(
        name=name,
        provider=target.provider,
        model=target.model if isinstance(target, ModelTarget) else None,
        judge_target=target.judge_target,
        max_concurrency=target.max_concurrency,
        worker_concurrency=target.worker_concurrency,
        timeout_seconds=target.timeout_seconds,
        quota=None if quotas is None else quota_of(target, quotas),
        cost=cost,
        keeps_conversation=target.keeps_conversation,
    )


class ModelTarget(TargetFields):
    """Fields of every model."""

    _answers_requests = True
    _sees_case = False

    model: Annotated[str, Field(min_length=1)]
    """The provider's name of the model."""
    api_key: SecretStr | None = None
    """A reference to the environment, such as ${{ OPENAI_API_KEY }}; never the key itself."""
    base_url: str | None = None
    """Where the API is, such as http://localhost:11434/v1. If absent, the provider's own."""
    temperature: FiniteFloat | None = None
    """The temperature of calls that set none themselves."""
    max_tokens: Positive | None = None
    """The most tokens of an answer, of calls that set no limit themselves."""
    max_input_tokens: Positive | None = None
    """The most tokens of a question that the provider takes: the bound of its cost where text alone gives none, as of
    images. If absent, the model's context window, if it is known."""
    output_estimate: Positive | None = None
    """The tokens that an answer without a limit is reserved for under a limit in money, which is soft then. If absent,
    such calls are refused."""
    adaptive: bool = True
    """Whether it has the quota of its provider, URL, key and model, whose limits are found, where it names none."""
    settings: TargetSettings | None = None
    """Other settings of calls that set none themselves."""

    @property
    def url(self) -> str | None:
        """Where the API is, if that is known."""
        return self.base_url

    @property
    def key(self) -> str:
        """The key of its provider; empty where it has none."""
        return "" if self.api_key is None else self.api_key.get_secret_value().strip()

    @property
    def default_settings(self) -> InvokeSettings:
        """The settings of calls that set none themselves: ``settings``, with ``temperature`` and ``max_tokens``."""
        given = {} if self.settings is None else self.settings.model_dump(exclude_none=True)
        own = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return InvokeSettings.model_validate({**own, **given})

    @model_validator(mode="after")
    def _check_given_once(self) -> Self:
        given = set() if self.settings is None else self.settings.model_fields_set
        for name in sorted(given & self.model_fields_set & {"temperature", "max_tokens"}):
            raise ValueError(f"{name}: it is given twice, here and in settings; leave one of them out")
        return self

    @model_validator(mode="after")
    def _check_adaptive(self) -> Self:
        if self.quota is not None and not self.adaptive:
            raise ValueError("adaptive: of a target that names a quota, write it there")
        return self

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None or is_unresolved(url, info):
            return url
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("not a URL; write it as https://host/v1")
        if "@" in parts.netloc:
            raise ValueError("a URL holds no credentials; put the key into api_key")
        return url


class _ApiTarget(ModelTarget, WatchedTarget):
    """Fields of every model that is asked in its vendor's own words."""

    image_urls: Literal["pass", "any", "refuse"] = "pass"
    """Whether the provider gets the URLs of images, which it then fetches: those of public hosts, any, or none."""
    allow: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """What the provider may run or load itself, such as web_search. If absent, calls that ask for it are refused."""


#: One endpoint of OpenAI's API, or a list.
Endpoints = Annotated[
    list[OpenAIEndpoint],
    BeforeValidator(
        lambda api: [api] if isinstance(api, str) else api, json_schema_input_type=OpenAIEndpoint | list[OpenAIEndpoint]
    ),
    Field(min_length=1),
]


class OpenAITarget(_ApiTarget):
    """A model behind OpenAI's API: at OpenAI, at another vendor or, with ``base_url``, at any compatible server."""

    provider: OpenAIVendor
    """The vendor, which decides the default of base_url, api and api_key."""
    api: Endpoints | None = None
    """The endpoints that it has. If absent, those of the vendor; of openai with another server, all but responses."""

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        if self.provider == "azure" and self.base_url is None:
            raise ValueError("base_url: write your resource's, such as https://NAME.openai.azure.com/openai/v1")
        if self.provider == "azure" and self.api_key is None:
            raise ValueError("api_key: name the variable of your resource's key, such as ${{ AZURE_OPENAI_API_KEY }}")
        return self

    @property
    def url(self) -> str:
        """Where the API is."""
        return self.base_url or VENDORS[self.provider].base_url or ""

    @property
    def takes_stream_options(self) -> bool:
        """Whether a stream may be asked for its usage."""
        refusing = [vendor for vendor in VENDORS.values() if not vendor.takes_stream_options]
        hosts = {urlsplit(vendor.base_url or "").hostname for vendor in refusing}
        return VENDORS[self.provider] not in refusing and urlsplit(self.url).hostname not in hosts

    @property
    def is_vendors_host(self) -> bool:
        """Whether it is OpenAI's own API, at one of its hosts."""
        return (urlsplit(self.url).hostname or "").endswith((".openai.com", ".azure.com"))

    @property
    def apis(self) -> tuple[ApiName, ...]:
        """The endpoints that it has."""
        if self.api is not None:
            return tuple(self.api)
        is_another_server = self.provider == "openai" and not self.is_vendors_host
        return ("chat", "completions", "embeddings") if is_another_server else VENDORS[self.provider].apis


class AnthropicTarget(_ApiTarget):
    """A model behind Anthropic's API."""

    provider: Literal["anthropic"]
    max_tokens: Positive = 4096
    """The most tokens of an answer, of calls that set no limit themselves."""

    @property
    def url(self) -> str:
        """Where the API is."""
        return self.base_url or "https://api.anthropic.com"

    @property
    def is_vendors_host(self) -> bool:
        """Whether it is Anthropic's own API, at its own host."""
        return (urlsplit(self.url).hostname or "").endswith(".anthropic.com")

    @property
    def apis(self) -> tuple[ApiName, ...]:
        """The endpoints that it has."""
        return ("messages",)


class PydanticAITarget(ModelTarget):
    """A model of any other vendor, over pydantic-ai."""

    provider: Literal["pydantic-ai"]
    model: str
    """pydantic-ai's name of the model, with its vendor: bedrock:…, google:…, mistral:… or any other."""
    api_key: SecretStr | None = None
    """A reference to the environment. If absent, the vendor's package finds its credentials in the environment."""

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str, info: ValidationInfo) -> str:
        vendor, colon, name = model.partition(":")
        if not (vendor and colon and name) and not is_unresolved(model, info):
            raise ValueError("write it as vendor:model, such as mistral:mistral-large-latest")
        return model


class MockTarget(TargetFields):
    """A target that needs no provider: it answers a fixed text, or echoes."""

    _sees_case = False

    provider: Literal["mock"]
    response: str | None = None
    """What it answers. If absent, the last user message."""
    delay_ms: Annotated[FiniteFloat, Field(ge=0)] = 0
    """Milliseconds before the first word."""
    chunk_delay_ms: Annotated[FiniteFloat, Field(ge=0)] = 0
    """Milliseconds between words."""
    fail_rate: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0
    """The fraction of calls that fail."""
    token_usage: MockUsage | None = None
    """The tokens that it reports."""

    @property
    def tells_steps(self) -> bool:
        """It does nothing but to answer."""
        return False


class TargetTarget(TargetFields, WatchedTarget):
    """A target under test that `quintain serve host` leases out."""

    provider: Literal["target"]
    host: TargetName | None = None
    """The name under which it is leased out. If absent, this target's own."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """The query whose result is the answer. If absent, the last value that the target emitted."""
    config: dict[str, str] = Field(default_factory=dict)
    """Its configuration, set before each run."""
    child_session: TargetChildSession | None = None
    """The session for its own calls, opened for each call as a child of its caller's session. If absent, none."""

    @property
    def keeps_conversation(self) -> bool:
        """Each call is a lease of its own, which takes one question."""
        return False

    @property
    def takes_images(self) -> bool:
        """Its question is a text."""
        return False


_AnyTarget = (
    OpenAITarget
    | AnthropicTarget
    | PydanticAITarget
    | AgentTarget
    | CommandTarget
    | PythonTarget
    | HttpTarget
    | MockTarget
    | TargetTarget
)

TargetConfig = Annotated[_AnyTarget, Field(discriminator="provider")]

#: The model of each provider kind, by the value of ``provider``.
TARGET_MODELS: dict[str, type[_AnyTarget]] = {
    "agent": AgentTarget,
    "anthropic": AnthropicTarget,
    "command": CommandTarget,
    "http": HttpTarget,
    "mock": MockTarget,
    **dict.fromkeys(VENDORS, OpenAITarget),
    "pydantic-ai": PydanticAITarget,
    "python": PythonTarget,
    "target": TargetTarget,
}
