"""The most that one try of a call can cost, which a session with a limit in money reserves before it is sent. No I/O.

Input: a token has at least one byte, so that a question of text has at most as many tokens as bytes, and what the
vendor adds. What is no text (images, documents, audio) is bounded by what the model reads at most. Output: the limit in
force, reasoning included, which both vendors count within it. Each is priced at the dearest tier that it can reach,
input as if it were written to a cache. Fields whose effect on the price is not known have no bound: they are refused by
name.

Sources: OpenAI's and Anthropic's references of ``max_completion_tokens``, ``max_output_tokens`` and ``max_tokens``;
Anthropic's table of system prompt tokens of tool use, of which the largest has 804.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from quintain.config.prices import Price, PriceTier
from quintain.config.program_targets import ProgramTarget
from quintain.config.target_fields import TargetChildSession
from quintain.config.targets import ModelTarget, PydanticAITarget, TargetConfig, TargetTarget
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, InvokeSettings
from quintain.contracts.money import CostTerms, CostTier, picodollars, to_dollars

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
        "max_tool_calls",
        "messages",
        "metadata",
        "min_p",
        "output_config",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
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

#: The types of messages and their parts that are text.
_TEXT_TYPES: Final = frozenset(
    {
        "custom",
        "custom_tool_call",
        "custom_tool_call_output",
        "ephemeral",
        "function",
        "function_call",
        "function_call_output",
        "input_text",
        "message",
        "output_text",
        "reasoning",
        "reasoning_text",
        "redacted_thinking",
        "refusal",
        "summary_text",
        "text",
        "thinking",
        "tool_result",
        "tool_use",
    }
)

#: What messages and parts of no type have: servers find out by its other members what a part is.
_TEXT_MEMBERS: Final = frozenset(
    {
        "cache_control",
        "content",
        "id",
        "is_error",
        "name",
        "reasoning",
        "reasoning_content",
        "refusal",
        "role",
        "text",
        "thinking_blocks",
        "tool_call_id",
        "tool_calls",
    }
)

#: Members with the words of models and callers, in which any key may stand.
_OPAQUE_MEMBERS: Final = frozenset({"arguments", "input", "function"})

#: The members that limit an answer, by API. Settings say ``max_tokens`` for each of them.
_OUTPUT_LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completions": ("max_tokens",),
    "messages": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
_ALL_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")

_QUESTION_FIELDS: Final = ("messages", "input", "system", "instructions", "prompt", "suffix")

#: The vendors whose clients, in pydantic-ai, repeat requests by themselves: a try may be billed several times.
_REPEATING_VENDORS: Final = frozenset({"bedrock", "huggingface", "xai"})


class CostBound(NamedTuple):
    """The most that one try can cost, in picodollars; None where nobody knows, and ``problem`` says why.

    With ``is_estimate`` it may cost more: the length of its answer was estimated.
    """

    amount: int | None
    problem: str | None = None
    is_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """How the cost of a target's calls is bounded.

    ``max_input_tokens`` is what the model reads at most, None where that is not known. ``output_estimate`` is how many
    tokens an answer without a limit counts as; None where such calls have no bound. ``defaults`` are the settings of
    calls that set none themselves, which have so many bytes. ``fixed`` is the bound of any call, where it is the same
    for all. ``child_usd`` is the limit of the session for the call's own calls, which reserve for themselves.
    """

    name: str
    price: Price = field(default_factory=Price)
    max_input_tokens: int | None = None
    output_estimate: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    default_bytes: int = 0
    fixed: CostBound | None = None
    child_usd: float | None = None

    @classmethod
    def of_target(cls, name: str, target: TargetConfig, price: Price | None) -> CostRule:
        """Return the rule of a configured target."""
        child = _child_session(target)
        if price is None:
            return cls(name=name, fixed=CostBound(None, f"its price is not known; set targets.{name}.price"))
        if not isinstance(target, ModelTarget):
            fixed = CostBound(picodollars(price.per_call))
            if price.input_per_million or price.output_per_million:
                problem = "the tokens of what is no model are not counted"
                fixed = CostBound(None, f"{problem}; set targets.{name}.price.per_call alone")
            return cls(name=name, fixed=fixed, child_usd=None if child is None else child.max_cost_usd)
        repeats = isinstance(target, PydanticAITarget) and not _REPEATING_VENDORS.isdisjoint(
            target.model.partition(":")[0].split("/")
        )
        return cls(
            name=name,
            price=price,
            max_input_tokens=target.max_input_tokens or price.context_window,
            output_estimate=target.output_estimate,
            defaults=_fields_of(target.default_settings),
            default_bytes=len(target.default_settings.to_wire()),
            fixed=CostBound(None, f"the client of {target.model} repeats requests by itself") if repeats else None,
        )

    def terms(self) -> CostTerms:
        """Return what its calls can cost at most, for those who have to know before they ask."""
        if self.fixed is not None:
            amount, problem, _ = self.fixed
            return CostTerms(per_call_usd=to_dollars(amount or 0), child_usd=self.child_usd, problem=problem)
        added = ADDED_TOKENS_WITH_TOOLS if self.defaults.get("tools") else ADDED_TOKENS
        limits = [
            self.defaults.get("max_tokens", self.output_estimate),
            *_pop_limits(dict(self.defaults.get("extra_body") or {}), _ALL_LIMITS),
        ]
        known = [limit for limit in limits if type(limit) is int and limit > 0]
        return CostTerms(
            per_call_usd=float(self.price.per_call),
            tiers=[
                CostTier(
                    above_input_tokens=tier.above_input_tokens if isinstance(tier, PriceTier) else 0,
                    input_usd=float(tier.dearest_input(for_an_hour=False)),
                    output_usd=float(tier.output_per_million),
                )
                for tier in (self.price, *self.price.tiers)
            ],
            added_tokens=added + self.default_bytes,
            max_tokens=max(known, default=None) if limits[0] is not None else None,
            max_input_tokens=self.max_input_tokens,
            is_estimate="max_tokens" not in self.defaults and self.output_estimate is not None,
        )

    def bound(self, request: InvokeRequest | ApiRequest | None, body_bytes: int) -> CostBound:
        """Return the bound of a request whose published body has so many bytes; None is one that is refused."""
        if self.fixed is not None:
            return self.fixed
        if request is None:
            return CostBound(0)
        asked = _asked_in_api(request, self.defaults) if isinstance(request, ApiRequest) else self._asked(request)
        return self._bound_of_model(asked, body_bytes)

    def _asked(self, request: InvokeRequest) -> _PricedRequest:
        given, own = _fields_of(request.settings), dict(self.defaults)
        added = {**own.pop("extra_body", {}), **given.pop("extra_body", {})}
        limits = _pop_limits(given, ("max_tokens",)) or _pop_limits(own, ("max_tokens",))
        own.pop("max_tokens", None)
        return _PricedRequest({**own, **given}, added, limits, [turn.content for turn in request.messages or ()])

    def _bound_of_model(self, asked: _PricedRequest, body_bytes: int) -> CostBound:
        # What is added to a request is no limit by itself: not each API gets it.
        limits = [*asked.limits, *_pop_limits(asked.added, _ALL_LIMITS)]
        fields = {**asked.added, **asked.fields}
        content = [*asked.content, *(fields.get(name) for name in _QUESTION_FIELDS)]
        is_estimate = not asked.limits and self.output_estimate is not None
        if is_estimate:
            limits.append(self.output_estimate)
        if not (asked.limits or is_estimate) or not all(type(each) is int and each > 0 for each in limits):
            return CostBound(
                None,
                f"its answers have no limit; set targets.{self.name}.max_tokens, or output_estimate for a soft limit",
            )
        lifetimes = set(_cache_lifetimes([fields, asked.content]))
        for_an_hour = "1h" in lifetimes and self.price.cache_write_1h_per_million is not None
        unknown = lifetimes - {"1h"} if for_an_hour else lifetimes
        unpriced = asked.header or next(_unpriced(fields, unknown, max(limits)), None)
        if unpriced is not None:
            return CostBound(None, f"{unpriced}: leave it out, as its effect on the price is not known")
        tokens = body_bytes + self.default_bytes
        tokens += ADDED_TOKENS_WITH_TOOLS if fields.get("tools") else ADDED_TOKENS
        # What a model reads at most is what it reads for one answer.
        window = self.max_input_tokens if asked.questions == 1 else None
        if any(_has_media(each) for each in content):
            if window is None:
                key = f"targets.{self.name}.max_input_tokens"
                return CostBound(None, f"the question is not only text, and what it may read is not known; set {key}")
            tokens = window
        elif window is not None:
            tokens = min(tokens, window)
        output = max(limits) * asked.questions
        amount = picodollars(self.price.most(tokens, output, for_an_hour=for_an_hour))
        return CostBound(amount, is_estimate=is_estimate)


def cost_rules(targets: Mapping[str, TargetConfig], prices: Mapping[str, Price | None]) -> dict[str, CostRule]:
    """Return the rules of configured targets. One whose child session calls a target without a bound has none itself:
    under a limit its calls would be charged, and those that it makes refused.
    """
    rules = {name: CostRule.of_target(name, target, prices.get(name)) for name, target in targets.items()}
    found = dict(rules)
    for name in targets:
        if (problem := _child_problem(name, targets, rules, {name})) is not None:
            found[name] = replace(rules[name], fixed=CostBound(None, problem))
    return found


def _child_problem(
    name: str, targets: Mapping[str, TargetConfig], rules: Mapping[str, CostRule], seen: set[str]
) -> str | None:
    """Return why what this target calls, itself or through others, has no bound; None where nothing is known of it."""
    child = _child_session(targets[name])
    for callee in () if child is None else child.targets:
        if callee in seen or callee not in rules:
            continue
        seen.add(callee)
        terms = rules[callee].terms()
        problem = terms.problem or f"its answers have no limit; set targets.{callee}.max_tokens, or output_estimate"
        if terms.bound(0) is None:
            return f"its child session calls {callee}, and {problem}"
        if (deeper := _child_problem(callee, targets, rules, seen)) is not None:
            return deeper
    return None


def _child_session(target: TargetConfig) -> TargetChildSession | None:
    return target.child_session if isinstance(target, ProgramTarget | TargetTarget) else None


class _PricedRequest(NamedTuple):
    """What of a request its price depends on.

    ``added`` are fields of the provider's own, which it gets too. ``limits`` are those of an answer, the larger of
    which may be in force, and ``questions`` is how many answers it asks for. ``header`` is one of unknown effect.
    """

    fields: Mapping[str, Any]
    added: dict[str, Any]
    limits: list[Any]
    content: list[Any]
    questions: int = 1
    header: str | None = None


def _asked_in_api(request: ApiRequest, defaults: Mapping[str, Any]) -> _PricedRequest:
    given = {name: value for name, value in request.body.values.items() if value is not None}
    own = dict(defaults)
    added, own_limits = dict(own.pop("extra_body", {})), _pop_limits(own, ("max_tokens",))
    content, questions = [], 1
    if request.api == "embeddings":
        # It has no tokens. Each text is read by itself.
        limits: list[Any] = [1]
        questions = len(given["input"]) if isinstance(given.get("input"), list) else 1
    else:
        limits = _pop_limits(given, _OUTPUT_LIMITS[request.api]) or own_limits
        if request.api == "messages" and limits == [0]:
            # Anthropic's way to fill its cache; elsewhere a limit of 0 may be none.
            limits = [1]
    if request.api == "completions" and not isinstance(given.get("prompt"), dict):
        content = [given.pop("prompt", None)]
        if isinstance(content[0], list) and not all(isinstance(each, int) for each in content[0]):
            questions = len(content[0])
    header = next((name for name in request.headers if name.endswith("-beta")), None)
    return _PricedRequest({**own, **given}, added, limits, content, questions, header)


def _fields_of(settings: InvokeSettings | None) -> dict[str, Any]:
    return {} if settings is None else settings.model_dump(exclude_none=True, exclude={"unsupported"})


def _pop_limits(fields: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    found = [fields.pop(name, None) for name in names]
    return [limit for limit in found if limit is not None]


def _unpriced(fields: Mapping[str, Any], lifetimes: set[str], output: int) -> Iterator[str]:
    """Yield the names of what has an effect on the price that is not known.

    ``lifetimes`` are those of cached input whose price is not known.
    """
    for name, value in fields.items():
        if name not in PRICED_FIELDS and value is not None:
            yield name
    tools = fields.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type", "custom") not in {"function", "custom"}:
            yield f"tools.{number}.type"
    if lifetimes:
        yield "cache_control.ttl"
    thinking = fields.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if budget is not None and not (type(budget) is int and budget < output):
        yield "thinking.budget_tokens"


def _cache_lifetimes(value: object) -> Iterator[str]:
    """Yield for how long input is to be cached, where that is not the usual five minutes."""
    if isinstance(value, dict):
        control = value.get("cache_control")
        if isinstance(control, dict) and control.get("ttl") not in (None, "5m"):
            yield str(control["ttl"])
        value = list(value.values())
    for each in value if isinstance(value, list | tuple) else ():
        yield from _cache_lifetimes(each)


def _has_media(value: object) -> bool:
    """Whether something in a question is not text."""
    if isinstance(value, dict):
        kind = value.get("type")
        if kind not in _TEXT_TYPES if isinstance(kind, str) else not value.keys() <= _TEXT_MEMBERS | {"type"}:
            return True
        return any(_has_media(each) for name, each in value.items() if name not in _OPAQUE_MEMBERS)
    return isinstance(value, list | tuple) and any(_has_media(each) for each in value)
