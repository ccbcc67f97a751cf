"""The most that one try of a call can cost, which a session with a limit in money reserves before it is sent. No I/O.

Input: a token has at least one byte, so that a question of text has at most as many tokens as bytes, and what the
vendor adds. What is no text (images, documents, audio) is bounded by what the model reads at most. Output: the limit in
force, reasoning included, which both vendors count within it. Each is priced at the dearest tier, input as if it were
written to a cache. Fields whose effect on the price is not known have no bound: they are refused by name.

Sources: OpenAI's and Anthropic's references of ``max_completion_tokens``, ``max_output_tokens`` and ``max_tokens``;
Anthropic's table of system prompt tokens of tool use, of which the largest has 804.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quintain.config.prices import Price
from quintain.config.targets import ModelTarget, TargetConfig
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from quintain.contracts.money import picodollars

#: What a vendor adds to a question: to any, and to one with tools.
ADDED_TOKENS, ADDED_TOKENS_WITH_TOOLS = 200, 1_200

#: The fields of vendors' requests that change nothing of the price but the number of tokens, which is bounded.
PRICED_FIELDS: Final = frozenset(
    {
        "cache_control",
        "dimensions",
        "encoding_format",
        "frequency_penalty",
        "include",
        "input",
        "instructions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "max_tool_calls",
        "messages",
        "metadata",
        "min_p",
        "output_config",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "prompt_cache_key",
        "reasoning",
        "reasoning_effort",
        "repetition_penalty",
        "response_format",
        "safety_identifier",
        "seed",
        "stop",
        "stop_sequences",
        "store",
        "suffix",
        "system",
        "temperature",
        "text",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
        "verbosity",
    }
)

#: The types of parts of messages that are text.
_TEXT_TYPES: Final = frozenset(
    {
        "text",
        "input_text",
        "output_text",
        "refusal",
        "message",
        "reasoning",
        "summary_text",
        "reasoning_text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "function",
        "function_call",
        "function_call_output",
        "custom",
        "custom_tool_call",
        "custom_tool_call_output",
        "json_schema",
        "json_object",
        "object",
        "string",
        "number",
        "integer",
        "boolean",
        "array",
        "null",
        "ephemeral",
        "enabled",
        "disabled",
        "adaptive",
        "auto",
        "none",
        "any",
        "tool",
    }
)

_OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")

_QUESTION_FIELDS: Final = ("messages", "input", "system", "instructions", "prompt", "suffix")


class CostBound(NamedTuple):
    """The most that one try can cost, in picodollars; None where nobody knows, and ``problem`` says why."""

    amount: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """How the cost of a target's calls is bounded.

    ``max_input_tokens`` is what the model reads at most, None where that is not known. ``defaults`` are the settings of
    calls that set none themselves, which have so many bytes.
    """

    name: str
    price: Price | None = None
    is_model: bool = False
    max_input_tokens: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    default_bytes: int = 0
    #: The bound of any call, where it is the same for all.
    fixed: CostBound | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        price, fixed = self.price, None
        if price is None:
            fixed = self._unknown("price", "its price is not known")
        elif not self.is_model:
            fixed = CostBound(picodollars(price.per_call))
            if price.input_per_million or price.output_per_million:
                fixed = self._unknown("price.per_call", "the tokens of what is no model are not counted")
        object.__setattr__(self, "fixed", fixed)

    @classmethod
    def of_target(cls, name: str, target: TargetConfig, price: Price | None) -> CostRule:
        """Return the rule of a configured target."""
        if not isinstance(target, ModelTarget):
            return cls(name=name, price=price)
        window, defaults = None if price is None else price.context_window, target.default_settings
        return cls(
            name=name,
            price=price,
            is_model=True,
            max_input_tokens=target.max_input_tokens or window,
            defaults=_fields_of(defaults),
            default_bytes=len(defaults.to_wire()),
        )

    def bound(self, request: InvokeRequest | ApiRequest | None, body_bytes: int) -> CostBound:
        """Return the bound of a request whose published body has so many bytes; None is one that is refused."""
        if self.fixed is not None:
            return self.fixed
        assert self.price is not None, "without a price the bound is fixed"
        if request is None:
            return CostBound(0)
        return self._bound_of_model(self.price, _asked(request, self.defaults), body_bytes)

    def _bound_of_model(self, price: Price, asked: _PricedRequest, body_bytes: int) -> CostBound:
        if asked.unpriced is not None:
            return CostBound(None, f"{asked.unpriced}: leave it out, as its effect on the price is not known")
        if asked.max_output is None:
            return self._unknown("max_tokens", "its answers have no limit")
        tokens = body_bytes + self.default_bytes + (ADDED_TOKENS_WITH_TOOLS if asked.has_tools else ADDED_TOKENS)
        if self.max_input_tokens is not None:
            tokens = self.max_input_tokens if asked.has_media else min(tokens, self.max_input_tokens)
        elif asked.has_media:
            return self._unknown("max_input_tokens", "the question is not only text")
        return CostBound(picodollars(price.most(tokens, asked.max_output)))

    def _unknown(self, key: str, reason: str) -> CostBound:
        return CostBound(None, f"{reason}; set targets.{self.name}.{key}")


class _PricedRequest(NamedTuple):
    """What of a request its price depends on; ``unpriced`` names a field whose effect is not known."""

    max_output: int | None
    has_tools: bool = False
    has_media: bool = False
    unpriced: str | None = None


def _asked(request: InvokeRequest | ApiRequest, defaults: Mapping[str, Any]) -> _PricedRequest:
    if isinstance(request, ApiRequest):
        given, question = request.body.values, [request.body.values.get(name) for name in _QUESTION_FIELDS]
        output = 0 if request.api == "embeddings" else _max_output(given, defaults)
        header = next((name for name in request.headers if name.endswith("-beta")), None)
    else:
        given, question, header = _fields_of(request.settings), [turn.content for turn in request.messages or ()], None
        output = _max_output(given, defaults)
    fields = {**defaults, **given}
    tools = fields.get("tools") or ()
    return _PricedRequest(
        max_output=output,
        has_tools=bool(tools),
        has_media=any(_has_media(each) for each in question),
        unpriced=header or next(_unpriced(fields), None),
    )


def _fields_of(settings: InvokeSettings | None) -> Mapping[str, Any]:
    """Return the settings that are set, with those of the provider's own beside them."""
    if settings is None:
        return {}
    fields = settings.model_dump(exclude_none=True, exclude={"unsupported"})
    return {**fields, **(fields.pop("extra_body", None) or {})}


def _max_output(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> int | None:
    for fields in (given, defaults):
        limits: list[int] = [fields[name] for name in _OUTPUT_LIMITS if isinstance(fields.get(name), int)]
        if limits:
            return max(limits)
    return None


def _unpriced(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if name not in PRICED_FIELDS and value is not None:
            yield name
        elif name == "tools" and isinstance(value, list):
            for number, tool in enumerate(value):
                if isinstance(tool, dict) and tool.get("type", "custom") not in {"function", "custom"}:
                    yield f"tools.{number}.type"
    if _has_long_cache(fields):
        yield "cache_control.ttl"


def _has_long_cache(value: object) -> bool:
    """Whether something is to be cached for longer than five minutes, which costs more."""
    if isinstance(value, dict):
        control = value.get("cache_control")
        if isinstance(control, dict) and control.get("ttl") not in {None, "5m"}:
            return True
        return any(_has_long_cache(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_has_long_cache(each) for each in value)


def _has_media(value: object) -> bool:
    """Whether something in a question is not text."""
    if isinstance(value, dict):
        kind = value.get("type")
        return (isinstance(kind, str) and kind not in _TEXT_TYPES) or any(_has_media(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_has_media(each) for each in value)
