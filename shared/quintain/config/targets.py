"""The target models of the configuration file: one frozen pydantic model per provider.

The repr and the dump of a target that was loaded from a file show its references, not their values.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
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
)

from quintain.config.references import holds_reference, without_references
from quintain.contracts.ledger import MAX_CONCURRENCY, TargetCard
from quintain.contracts.strings import TargetName

#: What a program's arguments may hold; each becomes the path of a file made for one call.
PLACEHOLDERS = ("prompt_file", "system_prompt_file", "output_file")

#: Context key of a validation before the environment's values are in.
UNRESOLVED_CONTEXT_KEY = "unresolved"

_PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")

Positive = Annotated[int, Field(gt=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


def _is_unresolved(value: object, info: ValidationInfo) -> bool:
    """Whether this value is known only once the environment's values are in."""
    return bool(info.context and info.context.get(UNRESOLVED_CONTEXT_KEY)) and holds_reference(value)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetPrice(_Strict):
    """What a target's tokens cost, in US dollars per million; cached ones as input where nothing else is said."""

    input_per_million: Amount
    output_per_million: Amount
    cached_input_per_million: Amount | None = None


class _Target(_Strict):
    """What every kind has: ``timeout_seconds`` bounds one try, ``max_tries`` counts tries at the provider per
    attempt, ``max_concurrency`` holds over all workers."""

    judge_target: TargetName | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 64
    timeout_seconds: Annotated[FiniteFloat, Field(gt=0)] | None = None
    max_tries: Annotated[int, Field(ge=1, le=10)] = 3
    price: TargetPrice | None = None

    _raw: dict[str, object] | None = PrivateAttr(default=None)

    def with_raw(self, raw: dict[str, object]) -> Self:
        """This target, showing what the file says wherever it is printed or dumped."""
        self._raw = raw
        return self

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return list(super().__repr_args__() if self._raw is None else self._raw.items())

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields: dict[str, object] = dump(self) if self._raw is None else dict(self._raw)
        return fields

    @field_validator("*", mode="wrap")
    @classmethod
    def _defer_unresolved(cls, value: object, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        # What a reference will hold is judged when it is resolved; until then the default stands.
        try:
            return validate(value)
        except ValidationError:
            if not _is_unresolved(value, info):
                raise
        field = cls.model_fields[str(info.field_name)]
        return value if field.is_required() else field.get_default(call_default_factory=True)


class _ModelTarget(_Target):
    model: Annotated[str, Field(min_length=1)]
    api_key: SecretStr | None = None
    base_url: str | None = None
    temperature: FiniteFloat | None = None

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
    """A model behind OpenAI's API, or behind any server that speaks it (``base_url``)."""

    provider: Literal["openai"]
    api: Literal["chat", "responses"] = "chat"
    max_tokens: Positive | None = None


class AnthropicTarget(_ModelTarget):
    """A model behind Anthropic's API."""

    provider: Literal["anthropic"]
    max_tokens: Positive = 4096


class CommandTarget(_Target):
    """A program, started once per call, with no shell in between. ``cwd`` starts at the configuration's folder."""

    provider: Literal["command"]
    command: Annotated[list[str], Field(min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)
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
    """A Python function, ``module:function``; modules beside the configuration are found."""

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
    """The tokens that a mock claims per call."""

    input: Annotated[int, Field(ge=0)] = 0
    output: Annotated[int, Field(ge=0)] = 0


class MockTarget(_Target):
    """A target that answers by itself: ``response``, or an echo of the last user message where it is not set.

    It waits ``delay_ms`` before its first word, and ``chunk_delay_ms`` between words.
    """

    provider: Literal["mock"]
    response: str | None = None
    delay_ms: Annotated[FiniteFloat, Field(ge=0)] = 0
    chunk_delay_ms: Annotated[FiniteFloat, Field(ge=0)] = 0
    fail_rate: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0
    token_usage: MockUsage | None = None


class TargetChildSession(_Strict):
    """What an agent under test may call in its caller's name: these targets, the first by default, so many times."""

    targets: Annotated[list[TargetName], Field(min_length=1)]
    max_calls: Positive = 10


class TargetTarget(_Target):
    """A target under test that `quintain serve host` leases out under ``host``, its own name where that is not set.

    ``config`` is filled in before each run; ``query`` is what gives the answer after it. With ``child_session`` each
    call opens a session for the agent, under its caller's.
    """

    provider: Literal["target"]
    host: TargetName | None = None
    query: Annotated[str, Field(min_length=1)] | None = None
    config: dict[str, str] = Field(default_factory=dict)
    child_session: TargetChildSession | None = None


_AnyTarget = OpenAITarget | AnthropicTarget | CommandTarget | PythonTarget | MockTarget | TargetTarget

TargetConfig = Annotated[_AnyTarget, Field(discriminator="provider")]

#: The model of each provider kind, by what ``provider`` says.
TARGET_MODELS: dict[str, type[_AnyTarget]] = {
    "anthropic": AnthropicTarget,
    "command": CommandTarget,
    "mock": MockTarget,
    "openai": OpenAITarget,
    "python": PythonTarget,
    "target": TargetTarget,
}

#: The model of each part of a target that is a map of its own, by its key.
NESTED_MODELS: dict[str, type[BaseModel]] = {
    "child_session": TargetChildSession,
    "price": TargetPrice,
    "token_usage": MockUsage,
}


def card_of(name: str, target: TargetConfig) -> TargetCard:
    """What the fleet is told of a target: never a key."""
    return TargetCard(
        name=name,
        provider=target.provider,
        model=target.model if isinstance(target, _ModelTarget) else None,
        judge_target=target.judge_target,
        max_concurrency=target.max_concurrency,
    )
