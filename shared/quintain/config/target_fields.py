"""The fields that targets of every provider have, and the models of the maps nested in a target."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from quintain.config.file_errors import ModelsByPlace
from quintain.config.http_template import JsonPointer
from quintain.config.secrets import holds_reference
from quintain.contracts.invoke import InvokeSettings, Unsupported
from quintain.contracts.ledger import MAX_CONCURRENCY
from quintain.contracts.money import MaxCostUsd
from quintain.contracts.session import AGENT_MAX_CALLS
from quintain.contracts.values import MAX_DEADLINE_SECONDS, NumberModel, TargetName
from quintain.programs.sandbox import Sandbox

Positive = Annotated[int, Field(gt=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


class StrictModel(NumberModel):
    """A frozen model without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class _TokenPrice(StrictModel):
    """The price of a target's tokens, in US dollars per million."""

    input_per_million: Amount = 0.0
    """Of a million tokens of questions."""
    output_per_million: Amount = 0.0
    """Of a million tokens of answers."""
    cached_input_per_million: Amount | None = None
    """Of a million tokens that the provider had cached. If absent, as other input."""
    cache_write_per_million: Amount | None = None
    """Of a million tokens that the provider put into its cache. If absent, as other input."""
    cache_write_1h_per_million: Amount | None = None
    """Of a million tokens that it put there for an hour. If absent, under a limit in money such calls are refused."""


class TargetPriceTier(_TokenPrice):
    """The price of all tokens of a call with a long question."""

    above_input_tokens: Positive
    """The calls with more tokens of questions than these have it."""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if not {"input_per_million", "output_per_million"} <= self.model_fields_set:
            raise ValueError("give input_per_million and output_per_million")
        return self


class TargetPrice(_TokenPrice):
    """The price of a target's tokens, in US dollars per million, and of its calls."""

    tiers: list[TargetPriceTier] = Field(default_factory=list)
    """The prices of calls with longer questions, the shortest first. If absent, they cost as others."""
    per_call: Amount = 0.0
    """Of each call, in US dollars: for programs and agents, whose tokens nobody counts."""
    failed_tries: Literal["free", "held"] | None = None
    """`free`: the provider says in writing that it bills no request that it answers with an error; `held`: what such a
    request may have cost stays held. If absent, `free` for OpenRouter, and `held` for all others."""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        tokens = {"input_per_million", "output_per_million"}
        if len(tokens & self.model_fields_set) == 1 or not self.model_fields_set & (tokens | {"per_call"}):
            raise ValueError("give input_per_million and output_per_million, or per_call, or all three")
        starts = [tier.above_input_tokens for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise ValueError("tiers: above_input_tokens must grow from one to the next")
        if self.tiers and not tokens <= self.model_fields_set:
            raise ValueError("tiers: give input_per_million and output_per_million beside them")
        return self


class TargetSettings(InvokeSettings):
    """The settings of a target's calls, used where a request sets none; the keys are in snake_case."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, alias_generator=str)

    # No part of a call: it changes no answer, so that it is in no fingerprint either. YAML reads `off` as false.
    cache_prompt: Annotated[
        Literal["auto", "off"], BeforeValidator(lambda value: "off" if value is False else value)
    ] = Field(default="auto", exclude=True)


class MockUsage(StrictModel):
    """The token counts that a mock target reports per call."""

    input: Annotated[int, Field(ge=0)] = 0
    """Tokens of the question."""
    output: Annotated[int, Field(ge=0)] = 0
    """Tokens of the answer."""


class TargetChildSession(StrictModel):
    """The child session of an agent under test."""

    targets: Annotated[list[TargetName], Field(min_length=1)]
    """The targets that the agent may call, the default one first."""
    max_calls: Positive = AGENT_MAX_CALLS
    """How many calls it may make for one call of its own."""
    max_cost_usd: MaxCostUsd | None = None
    """The most that they may cost, in US dollars. If absent, what the caller's session has."""


class HttpUsage(StrictModel):
    """Where the token counts are in the answer of an HTTP endpoint."""

    input: JsonPointer
    """Of the tokens of questions, all of them."""
    output: JsonPointer
    """Of the tokens of answers."""


class HttpStream(StrictModel):
    """Where things are in the events of an HTTP endpoint that streams."""

    text: JsonPointer | None = None
    """Of the next piece of the answer. If absent, answer says where the whole one is."""
    end: JsonPointer | None = None
    """Of what the last event has, and is not false. If absent, the answer ends at [DONE] or with the body."""


#: The models of nested maps, by their place in a target.
NESTED_MODELS: ModelsByPlace = {
    ("child_session",): TargetChildSession,
    ("price",): TargetPrice,
    ("price", "tiers", "*"): TargetPriceTier,
    ("sandbox",): Sandbox,
    ("settings",): TargetSettings,
    ("stream",): HttpStream,
    ("token_usage",): MockUsage,
    ("usage",): HttpUsage,
}

#: Validation context key: environment variables are not substituted yet.
UNRESOLVED_CONTEXT_KEY = "unresolved"


def is_unresolved(value: object, info: ValidationInfo) -> bool:
    """Return whether a value contains a reference whose variable is not substituted yet."""
    return bool(info.context and info.context.get(UNRESOLVED_CONTEXT_KEY)) and holds_reference(value)


def _within_longest_call(seconds: float) -> float:
    if seconds > MAX_DEADLINE_SECONDS:
        raise ValueError(f"a call lasts {MAX_DEADLINE_SECONDS:.0f} s (12 hours) at most")
    return seconds


#: A time limit of a call, in seconds.
TimeLimit = Annotated[
    FiniteFloat,
    Field(gt=0, json_schema_extra={"maximum": MAX_DEADLINE_SECONDS}),
    AfterValidator(_within_longest_call),
]


def _check_reference(name: str, info: ValidationInfo) -> str:
    if not is_unresolved(name, info) and not _REFERENCE.fullmatch(name):
        raise ValueError("write it as module:name")
    return name


_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

#: What a Python module has, as module:name.
PythonReference = Annotated[str, AfterValidator(_check_reference)]


class WatchedTarget(StrictModel):
    """The field of a target whose provider shows whether it goes on."""

    idle_seconds: TimeLimit | None = None
    """A try ends, in doubt, when nothing has come for so long: no byte, no event. If absent, at its other limits."""


class TargetFields(StrictModel):
    """Fields of every target."""

    judge_target: TargetName | None = None
    """The default target of graders that judge this one. If absent, the target itself."""
    max_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 64
    """The most calls in flight at once, over all workers."""
    worker_concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] | None = None
    """The most calls in flight at once in one worker, also its prefetch. If absent, max_concurrency."""
    quota: TargetName | None = None
    """The quota that it shares with other targets, by its name in quotas. If absent, that of its provider, URL, key and
    model."""
    timeout_seconds: TimeLimit | None = None
    """The limit of a call's tries at the provider, in seconds, and the deadline of its calls in `quintain run`, which
    is 600 s at least. If absent, the call's deadline."""
    max_tries: Annotated[int, Field(ge=1, le=10)] = 3
    """The most tries of a call at the provider, by all workers together."""
    price: TargetPrice | None = None
    """The price of its tokens. If absent, the provider's list price, if it is known."""
    unsupported: Unsupported = "refuse"
    """Whether calls with settings that the provider cannot honour are refused, or made without them."""
    depends_on: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Files, from the configuration's folder, whose bytes are part of the target's fingerprint."""
    cacheable: bool | None = None
    """Whether runs may take its answers from their cache. If absent, those of models and mocks."""
    replica_fields: list[str] = Field(default_factory=list)
    """Keys of this target that are no part of its fingerprint, because workers may differ in them."""

    _raw: dict[str, object] | None = PrivateAttr(default=None)
    #: Whether it is told which case a request is about, and who asks.
    _sees_case: ClassVar[bool] = True
    #: Whether its provider answers a request, if only with an error.
    _answers_requests: ClassVar[bool] = False

    @field_validator("price")
    @classmethod
    def _check_failed_tries(cls, price: TargetPrice | None) -> TargetPrice | None:
        if price is not None and price.failed_tries is not None and not cls._answers_requests:
            raise ValueError("failed_tries: only models and HTTP endpoints have it; leave it out")
        return price

    def with_raw(self, raw: dict[str, object]) -> Self:
        """Return this target with the raw fields of the file, which its repr and dump show instead of the values."""
        self._raw = raw
        return self

    @property
    def is_agent(self) -> bool:
        """Whether it may act when it is asked: a call that may have reached it is not repeated by itself."""
        return False

    @property
    def sees_case(self) -> bool:
        """Whether it is told which case a request is about, and who asks, so that its answer may depend on that."""
        return self._sees_case

    @property
    def is_cacheable(self) -> bool:
        """Whether runs may take its answers from their cache."""
        return not self._sees_case if self.cacheable is None else self.cacheable

    @property
    def keeps_conversation(self) -> bool:
        """Whether it is told what was said before, or remembers it: cases with turns need that."""
        return True

    @property
    def tells_steps(self) -> bool:
        """Whether its answers can say what it did for them."""
        return True

    @property
    def takes_images(self) -> bool:
        """Whether it is given the images of its requests; others refuse requests that have any."""
        return True

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        return list(super().__repr_args__() if self._raw is None else self._raw.items())

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        return dict(dump(self) if self._raw is None else self._raw)

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
            if not is_unresolved(value, info):
                raise
        field = cls.model_fields[str(info.field_name)]
        return value if field.is_required() else field.get_default(call_default_factory=True)
