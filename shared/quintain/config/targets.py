"""The target models of the configuration file: one frozen pydantic model per provider.

The repr and the dump of a target that was loaded from a file show its references, not their values.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PrivateAttr,
    SecretStr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from quintain.config.references import holds_reference, without_references
from quintain.contracts.inputs import InputKind
from quintain.contracts.invoke import InvokeSettings, Unsupported
from quintain.contracts.ledger import MAX_CONCURRENCY, TargetCard
from quintain.contracts.strings import TargetName
from quintain.program_confinement import SandboxOption

#: Placeholders in a command's arguments; each is replaced by the path of a file created for the call.
PLACEHOLDERS = ("prompt_file", "system_prompt_file", "output_file")

#: Validation context key: environment variables are not substituted yet.
UNRESOLVED_CONTEXT_KEY = "unresolved"

_PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")

Positive = Annotated[int, Field(gt=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


def _is_unresolved(value: object, info: ValidationInfo) -> bool:
    """Return whether a value contains a reference whose variable is not substituted yet."""
    return bool(info.context and info.context.get(UNRESOLVED_CONTEXT_KEY)) and holds_reference(value)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetPrice(_Strict):
    """The price of a target's tokens, in US dollars per million; cached input tokens cost as input if not given."""

    input_per_million: Amount
    output_per_million: Amount
    cached_input_per_million: Amount | None = None


class TargetSettings(InvokeSettings):
    """The settings of a target's calls, used where a request sets none; the keys are in snake_case."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, alias_generator=str)


class _Target(_Strict):
    """Fields of every target.

    ``timeout_seconds`` bounds one try at the provider, ``max_tries`` is the number of tries per attempt,
    ``max_concurrency`` the maximum number of concurrent calls over all workers, ``worker_concurrency`` that of one
    worker, by default the same. ``depends_on`` are
    files, from the configuration's folder, whose bytes are part of the target's fingerprint. ``replica_fields`` are
    keys of this target that are no part of it, because workers may differ in them. ``unsupported`` is what happens to
    settings that the provider cannot honour, where neither request nor session says ``ignore``.
    """

    #: What requests may bring to targets of this provider.
    inputs: ClassVar[frozenset[InputKind]] = frozenset({"conversation"})

    judge_target: TargetName | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 64
    worker_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] | None = None
    timeout_seconds: Annotated[FiniteFloat, Field(gt=0)] | None = None
    max_tries: Annotated[int, Field(ge=1, le=10)] = 3
    price: TargetPrice | None = None
    unsupported: Unsupported = "refuse"
    depends_on: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    replica_fields: list[str] = Field(default_factory=list)

    _raw: dict[str, object] | None = PrivateAttr(default=None)

    def with_raw(self, raw: dict[str, object]) -> Self:
        """Return this target with the raw fields of the file, which its repr and dump show instead of the values."""
        self._raw = raw
        return self

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return list(super().__repr_args__() if self._raw is None else self._raw.items())

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = dump(self) if self._raw is None else dict(self._raw)
        return fields

    @field_validator("replica_fields")
    @classmethod
    def _check_replica_fields(cls, keys: list[str]) -> list[str]:
        known = [name for name in cls.model_fields if name != "provider"]
        for key in keys:
            if key not in known:
                raise ValueError(f"this provider has no key {key!r}; known: {', '.join(known)}")
        return keys

    @field_validator("*", mode="wrap")
    @classmethod
    def _defer_unresolved(cls, value: object, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        # A value with an unresolved reference is validated by `Config.resolve`; until then the field has its default.
        try:
            return validate(value)
        except ValidationError:
            if not _is_unresolved(value, info):
                raise
        field = cls.model_fields[str(info.field_name)]
        return value if field.is_required() else field.get_default(call_default_factory=True)


class _ModelTarget(_Target):
    """Fields of every model. ``image_urls``: whether the provider gets the URLs of images, or they are refused."""

    model: Annotated[str, Field(min_length=1)]
    api_key: SecretStr | None = None
    base_url: str | None = None
    temperature: FiniteFloat | None = None
    max_tokens: Positive | None = None
    settings: TargetSettings | None = None
    image_urls: Literal["pass", "refuse"] = "pass"

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

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None or _is_unresolved(url, info):
            return url
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("not a URL; write it as https://host/v1")
        if "@" in parts.netloc:
            raise ValueError("a URL holds no credentials; put the key into api_key")
        return url


class OpenAITarget(_ModelTarget):
    """A model behind OpenAI's API or, with ``base_url``, behind any compatible server."""

    inputs = frozenset({"conversation", "completion", "embedding"})

    provider: Literal["openai"]
    api: Literal["chat", "responses"] = "chat"


class AnthropicTarget(_ModelTarget):
    """A model behind Anthropic's API."""

    provider: Literal["anthropic"]
    max_tokens: Positive = 4096


class CommandTarget(_Target):
    """A program that is started once per call, without a shell; ``cwd`` is relative to the configuration's folder."""

    provider: Literal["command"]
    command: Annotated[list[str], Field(min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)
    env_from: list[str] = Field(default_factory=list)
    run_as: str | None = None
    sandbox: SandboxOption = None
    cwd: str | None = None
    output_format: Literal["text", "json"] = "text"

    @field_validator("command", mode="before")
    @classmethod
    def _check_is_list(cls, command: object) -> object:
        if isinstance(command, str):
            message = 'a list, not a text, as no shell reads it; write ["program", "argument"]'
            raise ValueError(message)  # noqa: TRY004 -- pydantic reports ValueErrors as mistakes
        return command

    @field_validator("command")
    @classmethod
    def _check_placeholders(cls, command: list[str]) -> list[str]:
        if not command[0].strip():
            raise ValueError("its first item is the program, and is empty")
        for argument in command:
            for name in _PLACEHOLDER.findall(without_references(argument)):
                if name not in PLACEHOLDERS:
                    known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                    raise ValueError(f"unknown placeholder {{{name}}}; known: {known}")
        return command


class PythonTarget(_Target):
    """A Python function ``module:function``; modules next to the configuration file can be imported."""

    provider: Literal["python"]
    callable: str

    @field_validator("callable")
    @classmethod
    def _check_callable(cls, name: str, info: ValidationInfo) -> str:
        if _is_unresolved(name, info):
            return name
        module, _, function = name.partition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError("write it as module:function")
        return name


class MockUsage(_Strict):
    """The token counts that a mock target reports per call."""

    input: Annotated[int, Field(ge=0)] = 0
    output: Annotated[int, Field(ge=0)] = 0


class MockTarget(_Target):
    """A target that needs no provider: it answers ``response``, or echoes the last user message if that is not set.

    It waits ``delay_ms`` before the first word and ``chunk_delay_ms`` between words; ``fail_rate`` is the fraction of
    failing calls.
    """

    provider: Literal["mock"]
    response: str | None = None
    delay_ms: Annotated[FiniteFloat, Field(ge=0)] = 0
    chunk_delay_ms: Annotated[FiniteFloat, Field(ge=0)] = 0
    fail_rate: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0
    token_usage: MockUsage | None = None


class TargetChildSession(_Strict):
    """The child session of an agent under test: the targets it may call (default first) and how many calls."""

    targets: Annotated[list[TargetName], Field(min_length=1)]
    max_calls: Positive = 10


class TargetTarget(_Target):
    """A target under test that `quintain serve host` leases out under the name ``host``, by default this target's name.

    ``config`` is set before each run, and ``query`` is the query whose result is the answer. With ``child_session``
    each call opens a session for the agent, as a child of its caller's session.
    """

    provider: Literal["target"]
    host: TargetName | None = None
    query: Annotated[str, Field(min_length=1)] | None = None
    config: dict[str, str] = Field(default_factory=dict)
    child_session: TargetChildSession | None = None


_AnyTarget = OpenAITarget | AnthropicTarget | CommandTarget | PythonTarget | MockTarget | TargetTarget

TargetConfig = Annotated[_AnyTarget, Field(discriminator="provider")]

#: The model of each provider kind, by the value of ``provider``.
TARGET_MODELS: dict[str, type[_AnyTarget]] = {
    "anthropic": AnthropicTarget,
    "command": CommandTarget,
    "mock": MockTarget,
    "openai": OpenAITarget,
    "python": PythonTarget,
    "target": TargetTarget,
}

#: The models of nested maps in a target, by their key.
NESTED_MODELS: dict[str, type[BaseModel]] = {
    "child_session": TargetChildSession,
    "price": TargetPrice,
    "settings": TargetSettings,
    "token_usage": MockUsage,
}


def card_of(name: str, target: TargetConfig) -> TargetCard:
    """Return the target's public description, which never contains a key."""
    return TargetCard(
        name=name,
        provider=target.provider,
        model=target.model if isinstance(target, _ModelTarget) else None,
        judge_target=target.judge_target,
        max_concurrency=target.max_concurrency,
        worker_concurrency=target.worker_concurrency,
    )
