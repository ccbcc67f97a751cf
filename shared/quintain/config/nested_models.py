"""The models of the nested maps in a target of the configuration file."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from quintain.config.file_errors import ModelsByPlace
from quintain.config.http_template import JsonPointer
from quintain.contracts.invoke import InvokeSettings
from quintain.contracts.money import MaxCostUsd
from quintain.contracts.session import AGENT_MAX_CALLS
from quintain.contracts.values import NumberModel, TargetName
from quintain.programs.sandbox import Sandbox

Positive = Annotated[int, Field(gt=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


class StrictModel(NumberModel):
    """A frozen model without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)


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
