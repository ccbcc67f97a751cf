"""One target as a worker serves it: its provider, its fingerprints, its pause; and the worker's metrics.

Labels of metrics are the worker's own targets, codes and outcomes, never values from callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from quintain.config.fingerprint import hosted_fingerprint
from quintain.config.prices import Price
from quintain.contracts.api_request import ApiRequest
from quintain.observe.metrics import ServiceMetrics
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_worker.cost_bound import CostRule
from quintain_worker.providers.api_conversation import check_conversation
from quintain_worker.providers.provider import ApiProvider, CallHolder, HostedProvider, Provider, ProviderAnswer
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
    is now, and is None where it cannot change.
    ``hosts`` is the provider of a hosted target: the fingerprint of such a target is also that of its hosts.
    ``price`` is the price of its tokens, or None where it is not known, and ``cost_rule`` is how the cost of a call is
    bounded. ``api_provider`` is the provider, if it takes
    requests in the words of vendors' APIs as they are. ``has_quota``: the ledger decides when each of its tries begins.
    ``for_call`` returns the provider of one call, where each has one of its own. ``asks_once``: it may act, and is not
    asked for a call that a lost worker may have asked it for. ``holds_conversations``: of a turn, this worker does.
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
    hosts: HostedProvider | None = None
    price: Price | None = None
    cost_rule: CostRule | None = None
    api_provider: ApiProvider | None = None
    has_quota: bool = False
    for_call: Callable[[CallHolder], Provider] | None = None
    asks_once: bool = False
    holds_conversations: bool = False

    def check(self, request: ApiRequest) -> None:
        """Check what a caller asks of it. Raises `BadRequest`, which names the field."""
        (check_conversation if self.api_provider is None else self.api_provider.check)(request)

    def current_fingerprint(self) -> str | None:
        """The fingerprint to register, or None where it is unknown."""
        configured = self.fingerprint if self.read_fingerprint is None else self.read_fingerprint()
        return configured if self.hosts is None else hosted_fingerprint(configured, self.hosts.host_fingerprint)

    def answer_fingerprint(self, configured: str | None, answer: ProviderAnswer | None) -> str | None:
        """The fingerprint of what answered; ``configured`` is that of the configuration before the provider was asked.

        None where a file changed meanwhile: nobody knows which of the two answered.
        """
        if answer is None or (self.read_fingerprint is not None and configured != self.read_fingerprint()):
            return None
        return configured if self.hosts is None else hosted_fingerprint(configured, answer.host_fingerprint)


class Notification:
    """Wakes all tasks that wait for a change; each of them then checks the state itself."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        """Wake all tasks that wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next notification, or after ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class PauseState:
    """The pause of one target, as this worker knows it: by its provider for this worker, and by the ledger for all.

    A pause is measured on this process's monotonic clock. Each answer of the ledger sets it to the remaining time on
    the ledger's clock, so differences between machines' clocks do not matter.

    ``report`` is called with the seconds of each pause that the target's provider asks for. A pause of up to
    `Timings.shared_pause_seconds` is not reported and delays only the throttled call: other workers would learn of it
    with their next heartbeat, after its end.
    """

    def __init__(self, report: Callable[[float], None] = lambda _: None, timings: Timings = DEFAULT_TIMINGS) -> None:
        self._report, self._timings = report, timings
        self._provider_until = self._ledger_until = -math.inf
        #: The end of the pause, in the loop's seconds; before every time where the target is not paused.
        self.until = -math.inf
        self.changed = Notification()
        self.stopping = False
        #: Until when a worker that stops waits for its calls, in the loop's seconds.
        self.stops_at = math.inf

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the target may be called; 0 where it is not paused."""
        return 0.0 if self.until == -math.inf else max(0.0, self.until - asyncio.get_running_loop().time())

    @property
    def exceeds_hold_limit(self) -> bool:
        """Whether the pause is so long that calls must return to their queue instead of waiting here."""
        return self.holds_no_longer(self.remaining_seconds)

    def holds_no_longer(self, seconds: float) -> bool:
        """Whether a wait of this many seconds is too long for holding a call in this worker."""
        return seconds > self._timings.held_call_seconds

    async def wait_until(self, at: float) -> None:
        """Wait until this time of the loop, or until the worker stops."""
        while (seconds := at - asyncio.get_running_loop().time()) > 0 and not self.stopping:
            await self.changed.wait(seconds)

    def pause_for(self, seconds: float) -> None:
        """Pause the target because its provider answered with a retry-after of this many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        if seconds <= self._timings.shared_pause_seconds or until <= self._provider_until:
            return
        self._provider_until = until
        self.until = max(until, self._ledger_until)
        self._report(seconds)
        self.changed.notify_all()

    def apply_ledger_pause(self, seconds: float | None, *, is_reported: bool = False) -> None:
        """Set the fleet-wide pause to this many remaining seconds, or end it with None.

        ``is_reported`` means that the ledger knows every pause this worker's provider asked for; its answer then
        replaces the provider's pause too, so that an administrator's resume ends both.
        """
        if is_reported:
            self._provider_until = -math.inf
        if seconds is None:
            self._ledger_until = -math.inf
        else:
            self._ledger_until = asyncio.get_running_loop().time() + seconds
        self.until = max(self._provider_until, self._ledger_until)
        self.changed.notify_all()

    def stop(self, grace_seconds: float = math.inf) -> None:
        """Stop holding calls for the end of a pause: the worker stops, and waits so long for those that run."""
        self.stopping, self.stops_at = True, asyncio.get_running_loop().time() + grace_seconds
        self.changed.notify_all()
