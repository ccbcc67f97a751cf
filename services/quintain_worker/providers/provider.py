"""The `Provider` interface, its answer and its failure.

A provider makes one try per call. Retries, deadlines, budgets and replies belong to the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quintain.apis.translation import objects
from quintain.bus.base import Bus
from quintain.contracts.agents import AgentStep, Continuation, StepsCut
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import InvokeRequest, OutputMessage, ReasoningChunk, TokenUsage, ToolCallChunk
from quintain.contracts.quota import FailureCause, RateReport, TryOutcome
from quintain.errors import Fault, Throttled, TimedOut
from quintain.programs.agent_urls import AgentUrls
from quintain.timings import DEFAULT_TIMINGS, Timings

#: A piece of an answer on its way: the next text, the next piece of a tool call or of the reasoning, or the next event
#: of the stream that answers an `ApiRequest`.
Delta = str | ToolCallChunk | ReasoningChunk | dict[str, Any]

#: Callback for each piece of an answer, in order. It must return at once and never raise.
OnText = Callable[[Delta], None]

#: Asks the vendor what a try cost, in US dollars: None where it does not tell. It raises nothing.
AskBill = Callable[[], Awaitable[float | None]]


async def no_bill() -> None:
    """Be told nothing: few vendors tell what a try cost."""


#: Pieces of a stream are joined over this time, in seconds: each message costs the broker as much as a whole call.
JOIN_SECONDS = 0.05

#: The longest retry-after that is accepted from a provider, in seconds.
MAX_RETRY_AFTER_SECONDS = 24 * 3600.0


def next_join(now: float) -> float:
    """Return when the pieces that come from ``now`` on are joined: the same time for all streams, so that their chunks
    share messages."""
    return (now // JOIN_SECONDS + 1) * JOIN_SECONDS


class ModelUsage(NamedTuple):
    """What the calls that an agent made for one answer took: their tokens, and in US dollars what is known of it."""

    tokens: TokenUsage
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """The answer of a provider. ``model`` is the model that served the request, where the provider names it.

    ``output`` is set where the answer is more than ``text``: several messages, tool calls, reasoning. The text is that
    of the last message; another text is sent as one more message. ``ignored`` names
    the settings that the provider was asked without. ``body`` is the answer to an `ApiRequest`, in the words of its
    API. ``host_fingerprint`` is that of the host on which a hosted target ran. ``rates`` is what its headers say of the
    key's limits, where they do. ``steps`` are what an agent did, ``steps_cut`` what its `StepLog` left out of them.
    ``continuation`` is set where the target keeps the conversation: ``holds_conversation`` then says that this worker
    does, so that the next turn has to come to it. ``models`` is what an agent's own calls took, where it makes any, and
    ``estimated_cost_usd`` what it says that the answer cost. ``billed_usd`` is what the vendor told when it was asked
    with ``ask_bill``.
    """

    text: str
    output: list[OutputMessage] | None = None
    token_usage: TokenUsage | None = None
    model: str | None = None
    finish_reason: str | None = None
    ignored: tuple[str, ...] = ()
    body: dict[str, Any] | None = None
    host_fingerprint: str | None = None
    rates: RateReport | None = None
    steps: tuple[AgentStep, ...] = ()
    steps_cut: StepsCut | None = None
    continuation: Continuation | None = None
    holds_conversation: bool = False
    models: ModelUsage | None = None
    estimated_cost_usd: float | None = None
    ask_bill: AskBill = no_bill
    billed_usd: float | None = None

    async def with_bill(self, ends_at: float) -> ProviderAnswer:
        """Return it without token counts that say nothing, and what has none with its bill, where the vendor tells.

        Its caller waits for the answer until ``ends_at``, in the loop's seconds: so long the vendor is asked.
        """
        answer, usage = self, self.token_usage
        # Servers that count nothing say 0, which would be free.
        if isinstance(usage, TokenUsage) and (usage.input <= 0 or (usage.output <= 0 and self._has_content())):
            answer = dataclasses.replace(self, token_usage=None)
        if answer.token_usage is not None or self.ask_bill is no_bill:
            return answer
        try:
            async with asyncio.timeout_at(ends_at):
                return dataclasses.replace(answer, billed_usd=await self.ask_bill())
        except TimeoutError:
            return answer

    def _has_content(self) -> bool:
        if self.body is None:
            return bool(self.text or self.output)
        for choice in objects(self.body.get("choices")):
            message = choice.get("message")
            said = message if isinstance(message, dict) else {"text": choice.get("text")}
            if any(value for name, value in said.items() if name != "role"):
                return True
        return bool(self.body.get("content") or self.body.get("output"))


class Billing(StrEnum):
    """What is known about the billing of a failed try; it decides whether the call is refunded, charged or in doubt."""

    #: It is certain that no inference happened (never sent; 401, 402, 403, 404, 429; 503 and 529).
    UNBILLED = "unbilled"
    #: The provider processed the request, and failed or refused it.
    BILLED = "billed"
    #: The request may have reached the provider, and its outcome is unknown.
    UNKNOWN = "unknown"


class ProviderFailure(Exception):
    """One try failed.

    ``retryable``: another try may succeed, after ``retry_after_seconds`` where the provider gave it. ``outcome`` is how
    the provider took the call, as far as its key's limits and its health are concerned, and ``rates`` what the headers
    of its answer say of those limits. ``cause`` is what mends it, where that is known. ``ask_bill``: `ProviderAnswer`.
    """

    cause: FailureCause | None = None
    ask_bill: AskBill = staticmethod(no_bill)
    #: Whether the provider itself answered that it failed.
    is_answered = False

    def __init__(
        self,
        fault: Fault,
        billing: Billing,
        *,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        outcome: TryOutcome | None = None,
        rates: RateReport | None = None,
    ) -> None:
        """Describe a failure; without an ``outcome`` it is what the fault and ``retryable`` say."""
        super().__init__(fault.message)
        self.fault, self.billing = fault, billing
        self.retryable, self.retry_after_seconds = retryable, clamp_retry_after(retry_after_seconds)
        self.rates = rates
        if outcome is not None:
            self.outcome = outcome
        elif isinstance(fault, Throttled):
            self.outcome = TryOutcome.THROTTLED
        else:
            self.outcome = TryOutcome.FAILED if retryable or isinstance(fault, TimedOut) else TryOutcome.ANSWERED

    async def known_bill(self, *, failures_are_free: bool) -> list[float]:
        """Return what the try cost in US dollars, if it may have cost anything and that is known.

        ``failures_are_free``: the provider does not bill what it answers with an error.
        """
        if self.billing is Billing.UNBILLED:
            return []
        usd = 0.0 if self.is_answered and failures_are_free else await self.ask_bill()
        return [] if usd is None else [usd]


#: Returns the steps of a call so far, and what was left out of them.
ReadSteps = Callable[[], tuple[Sequence[AgentStep], StepsCut | None]]


@contextlib.contextmanager
def steps_before_failure(read_steps: ReadSteps) -> Iterator[None]:
    """Add the steps so far to a `ProviderFailure` that is raised inside."""
    try:
        yield
    except ProviderFailure as failure:
        failure.fault.steps, failure.fault.steps_cut = read_steps()
        raise


def clamp_retry_after(retry_after_seconds: float | None) -> float | None:
    """Limit a retry-after to `MAX_RETRY_AFTER_SECONDS`; None for a negative number or NaN."""
    if retry_after_seconds is None or not retry_after_seconds >= 0:
        return None
    return min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS)


class Provider(Protocol):
    """Answers requests for one target.

    Safe for concurrent calls; cancelling `answer` stops the work at the provider.
    """

    async def answer(
        self, request: InvokeRequest, *, timeout_seconds: float, on_text: OnText | None = None
    ) -> ProviderAnswer:
        """Make one try within ``timeout_seconds`` and return the answer. Raises `ProviderFailure`.

        ``on_text`` is called with each piece of text as it arrives: joined, the pieces are the answer's text, or
        nothing where that is a refusal; after a failure they are void. A provider that cannot stream never calls it.
        The returned answer is complete in any case.
        """

    async def close(self) -> None:
        """Close connections and end processes."""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """The worker's environment that providers are built with.

    ``folder`` is the configuration's folder, which relative paths start from; ``env`` is the environment of programs,
    and ``agent_urls`` are those by which they call targets, where somebody serves them.
    """

    folder: Path
    env: Mapping[str, str]
    bus: Bus | None = None
    timings: Timings = DEFAULT_TIMINGS
    agent_urls: AgentUrls | None = None


class ApiProvider(ABC):
    """A provider that takes requests in the words of vendors' APIs as they are, besides conversations."""

    @abstractmethod
    def check(self, request: ApiRequest) -> None:
        """Check what a caller asks of it. Raises `BadRequest`, which names the field."""


class CallHolder(NamedTuple):
    """The attempt that runs a call, and its worker: it may read the call's body and open its child session."""

    session_id: str
    request_id: str
    attempt_id: str
    incarnation: str


class SessionScopedProvider(ABC):
    """A provider that needs to know the call, such as one whose target makes calls charged to the caller's session."""

    @abstractmethod
    async def answer(
        self,
        request: InvokeRequest,
        *,
        timeout_seconds: float,
        on_text: OnText | None = None,
        holder: CallHolder | None = None,
    ) -> ProviderAnswer:
        """See `Provider.answer`; ``holder`` is the attempt that runs the call."""


class StartedProvider(ABC):
    """A provider whose processes are started with its worker."""

    @abstractmethod
    async def start(self) -> None:
        """Start them, and wait until they are ready. Raises `ConfigError` where one is not."""


class ConversationHolder(ABC):
    """A provider that holds conversations in this worker, each with what its target keeps of it."""

    @property
    @abstractmethod
    def holds_conversations(self) -> bool:
        """Whether it does: some programs are told all that was said with each turn."""

    @abstractmethod
    def end_conversation(self, session_id: str, conversation_id: str) -> None:
        """End a conversation of a session, unless it is held elsewhere or one of its turns runs."""


class HostedProvider(SessionScopedProvider):
    """A provider whose target runs on hosts, each with a fingerprint of its own."""

    @property
    @abstractmethod
    def host_fingerprint(self) -> str | None:
        """The fingerprint that a host reported last; None where it is unknown."""

    @abstractmethod
    async def watch_hosts(self) -> None:
        """Ask the hosts for their fingerprint now, and regularly until `close`."""
