"""One target as a worker serves it, and the fingerprints of what it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.config.fingerprint import hosted_fingerprint
from quintain.config.prices import Price
from quintain.contracts.api_request import ApiRequest
from quintain_worker.delivery.streaming import PROGRESS_SECONDS
from quintain_worker.providers.api_conversation import check_conversation
from quintain_worker.providers.provider import ApiProvider, HostedProvider, Provider, ProviderAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTarget:
    """One target as this worker serves it. ``trace_content`` adds prompts and answers to the spans.

    ``ignore_unsupported``: settings that its provider cannot honour are ignored, unless a request refuses that.
    ``read_fingerprint`` returns the fingerprint of the target's configuration and files as they are now, or None.
    ``hosts`` is the provider of a hosted target: the fingerprint of such a target is also that of its hosts.
    ``price`` is the price of its tokens, or None where it is not known. ``api_provider`` is the provider, if it takes
    requests in the words of vendors' APIs as they are.
    """

    name: str
    provider: Provider
    max_tries: int = 3
    timeout_seconds: float | None = None
    progress_seconds: float = PROGRESS_SECONDS
    trace_content: bool = False
    ignore_unsupported: bool = False
    read_fingerprint: Callable[[], str | None] = lambda: None
    hosts: HostedProvider | None = None
    price: Price | None = None
    api_provider: ApiProvider | None = None

    def check(self, request: ApiRequest) -> None:
        """Check what a caller asks of it. Raises `BadRequest`, which names the field."""
        (check_conversation if self.api_provider is None else self.api_provider.check)(request)

    def current_fingerprint(self) -> str | None:
        """The fingerprint to register, or None where it is unknown."""
        configured = self.read_fingerprint()
        return configured if self.hosts is None else hosted_fingerprint(configured, self.hosts.host_fingerprint)

    def answer_fingerprint(self, configured: str | None, answer: ProviderAnswer | None) -> str | None:
        """The fingerprint of what answered; ``configured`` is that of the configuration before the provider was asked.

        None where a file changed meanwhile: nobody knows which of the two answered.
        """
        if answer is None or configured != self.read_fingerprint():
            return None
        return configured if self.hosts is None else hosted_fingerprint(configured, answer.host_fingerprint)
