"""One target as a worker serves it: its provider and its fingerprints; and the worker's metrics.

Labels of metrics are the worker's own targets, codes and outcomes, never values from callers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from quintain.config.fingerprint import hosted_fingerprint
from quintain.config.prices import Price
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.ledger import TargetCard
from quintain.observe.metrics import ServiceMetrics
from quintain.rpc.own_queues import OwnQueue
from quintain_worker.cost_bound import CostRule
from quintain_worker.providers.api_conversation import check_conversation
from quintain_worker.providers.provider import ApiProvider, HostedProvider, Provider, ProviderAnswer
from quintain_worker.streaming import PROGRESS_SECONDS

#: The ``code`` label of deliveries without a fault: answered by the provider, answered from the ledger's stored reply,
#: returned to the queue.
OK, REPLAYED, GIVEN_BACK = "ok", "replayed", "given_back"

#: How long after its timeout a provider is ended that does not apply it, in seconds, before the caller gives up: others
#: say until then how their try ended, and what it cost.
GRACE_SECONDS = 1.5


class WorkerMetrics(ServiceMetrics):
    """Prometheus metrics of one worker, each a function of its labels, as in ``metrics.calls(target, code).inc()``."""

    def __init__(self) -> None:
        super().__init__("worker")
        calls = self.counter("calls", "Deliveries that ended, by target and code", "target", "code")
        attempts = self.counter("attempts", "Settled attempts, by outcome", "target", "outcome")
        provider_seconds = self.histogram(
            "provider_seconds", "Seconds of one provider try, by its outcome", "target", "end"
        )
        queue_seconds = self.histogram(
            "queue_wait_seconds", "Seconds from the publish of a request to its receipt", "target"
        )
        throttled = self.counter("throttled", "Tries that a provider refused for its rate limit", "target")
        # `labels()` is cached: the label values are few, and every call updates several metrics.
        self.calls, self.attempts = cache(calls.labels), cache(attempts.labels)
        self.provider_seconds, self.queue_seconds = cache(provider_seconds.labels), cache(queue_seconds.labels)
        self.throttled = cache(throttled.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTarget:
    """One target as this worker serves it. ``trace_content`` adds prompts and answers to the spans.

    ``ignore_unsupported``: settings that its provider cannot honour are ignored, unless a request refuses that.
    ``fingerprint`` is that of its configuration and files at the start, or None; ``read_fingerprint`` returns what it
    is now, and is None where it cannot change. ``price`` is the price of its tokens, or None where it is not known, and
    ``cost_rule`` is how the cost of a call is bounded. ``asks_once``: it may act, and is not asked for a call that a
    lost worker may have asked it for. Set by `Worker`: ``card``, and ``turns``, the queue of the turns of those of its
    conversations that this worker holds, which is opened for the first of them.
    """

    name: str
    provider: Provider
    max_tries: int = 3
    timeout_seconds: float | None = None
    progress_seconds: float = PROGRESS_SECONDS
    trace_content: bool = False
    ignore_unsupported: bool = False
    fingerprint: str | None = None
    read_fingerprint: Callable[[], str | None] | None = None
    price: Price | None = None
    cost_rule: CostRule | None = None
    asks_once: bool = False
    card: TargetCard | None = None
    turns: OwnQueue | None = None

    @property
    def has_quota(self) -> bool:
        """Whether the ledger's line learns from its tries."""
        return self.card is not None and self.card.quota is not None

    @property
    def hosts(self) -> HostedProvider | None:
        """The provider of a hosted target: the fingerprint of such a target is also that of its hosts."""
        return self.provider if isinstance(self.provider, HostedProvider) else None

    def check(self, request: ApiRequest) -> None:
        """Check what a caller asks of it. Raises `BadRequest`, which names the field."""
        (self.provider.check if isinstance(self.provider, ApiProvider) else check_conversation)(request)

    def configured_fingerprint(self) -> str | None:
        """Return the fingerprint of its configuration and files now."""
        return self.fingerprint if self.read_fingerprint is None else self.read_fingerprint()

    def current_fingerprint(self) -> str | None:
        """The fingerprint to register, or None where it is unknown."""
        configured = self.configured_fingerprint()
        return configured if self.hosts is None else hosted_fingerprint(configured, self.hosts.host_fingerprint)

    def answer_fingerprint(self, configured: str | None, answer: ProviderAnswer | None) -> str | None:
        """The fingerprint of what answered; ``configured`` is that of the configuration before the provider was asked.

        None where a file changed meanwhile: nobody knows which of the two answered.
        """
        if answer is None or (self.read_fingerprint is not None and configured != self.read_fingerprint()):
            return None
        return configured if self.hosts is None else hosted_fingerprint(configured, answer.host_fingerprint)
