"""Metadata services that share a ledger and its quotas, with a broker that delivers at once, and a clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quintain.bus.base import Envelope
from quintain.contracts.headers import PROTOCOL_VERSION
from quintain.contracts.ledger import (
    Admission,
    Admit,
    AdmitBatch,
    AdmitReply,
    AttemptOutcome,
    Register,
    SettleBatch,
    TargetCard,
)
from quintain.contracts.quota import QuotaCard, QuotaTerms, TryOutcome, TryReport
from quintain.contracts.session import SessionOpened
from quintain.errors import Unroutable
from quintain.routes import ADMIT, SETTLE
from quintain.timings import DEFAULT_TIMINGS
from quintain.topology import LEDGER, PROBE, REPLY, Exchange
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.ledger import leases
from quintain_metadata.ledger_queues import AdmitConsumer, OwnerSender, SettleConsumer
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.quotas.ownership import QuotaOwners
from quintain_metadata.quotas.quota_admission import QuotaAdmission
from quintain_metadata.store.base import Ledger, Moment, Operation, Returned, execute
from support.ledger_driver import settle_request

ANSWERED = TryReport(outcome=TryOutcome.ANSWERED)


@dataclass(frozen=True)
class DirectDelivery:
    """A message that is handed over at once."""

    body: bytes
    type: str
    exchange: str
    routing_key: str
    reply_to: str | None = "worker"
    correlation_id: str | None = "admit"
    headers: Mapping[str, object] = field(default_factory=dict)
    expiration_ms: int | None = None
    redelivered: bool = False

    async def ack(self) -> None:
        pass


@dataclass
class ClockedLedger:
    """A ledger whose clock is ahead by so many milliseconds."""

    ledger: Ledger
    ahead_ms: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    async def transact(self, operation: Operation[Returned]) -> Returned:
        def shifted(moment: Moment) -> Any:
            return operation(self.ledger.lease_expiry.moment(moment.now + self.ahead_ms))

        return await self.ledger.transact(shifted)


@dataclass
class QuotaService:
    """What of one metadata service has to do with quotas."""

    fleet: QuotaFleet
    key: str
    is_alive: bool = True
    is_connected: bool = True
    queue: AdmissionQueue = field(init=False)
    admits: AdmitConsumer = field(init=False)
    settles: SettleConsumer = field(init=False)

    def __post_init__(self) -> None:
        ledger, bus = self.fleet.ledger, self.fleet
        owners = QuotaOwners(ledger, self.key, DEFAULT_TIMINGS, lambda: self.is_connected)
        quotas = QuotaAdmission(ledger, self.fleet.now, owners)
        self.queue = AdmissionQueue(ledger, quotas=quotas)
        sender = OwnerSender(bus, DEFAULT_TIMINGS)
        self.admits = AdmitConsumer(bus, ledger, self.queue, sender)
        self.settles = SettleConsumer(self.queue, MetadataMetrics(), DEFAULT_TIMINGS, sender)

    @property
    def is_owner(self) -> bool:
        return self.queue.quotas.owned("a") is not None and self.queue.quotas.is_own("a")

    async def sweep(self) -> None:
        await self.queue.retry_waiting()
        await self.queue.grant_quotas()


@dataclass
class QuotaFleet:
    """Services over one ledger, the worker ``w1`` of target ``a`` with a quota, and what it was told.

    It stands for the broker too: `publish` delivers at once, or is refused where the service is gone.
    """

    ledger: ClockedLedger
    session: SessionOpened
    services: dict[str, QuotaService] = field(default_factory=dict)
    asked: dict[str, Admit] = field(default_factory=dict)
    answers: dict[str, Admission] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    most_running: int = 0

    def now(self) -> float:
        return self.ledger.ahead_ms / 1000

    def living(self) -> list[QuotaService]:
        return [service for service in self.services.values() if service.is_alive]

    def owner(self) -> QuotaService | None:
        return next((service for service in self.living() if service.is_owner), None)

    async def register(self, *targets: str, worker: str = "w1", **terms: object) -> None:
        quota = QuotaCard(id="key", name="team", terms=QuotaTerms.model_validate({"adaptive": False, **terms}))
        cards = [TargetCard(name=name, provider="mock", max_concurrency=64, quota=quota) for name in targets or ("a",)]
        request = Register(worker_id=worker, incarnation=worker, targets=cards, protocol=PROTOCOL_VERSION)
        await self.ledger.transact(lambda moment: leases.register_worker(moment.now, request))

    async def start_service(self, key: str) -> QuotaService:
        self.services[key] = service = QuotaService(self, key)
        await service.queue.quotas.start()
        return service

    async def send(self, service: QuotaService, *admits: Admit, worker: str = "w1") -> None:
        """Send admits to the queue of all services, as a repetition is, which this one reads."""
        self.asked |= {admit.attempt_id: admit for admit in admits}
        body = AdmitBatch(incarnation=worker, items=list(admits)).to_wire()
        await service.admits(DirectDelivery(body, ADMIT.key, LEDGER.name, ADMIT.key))
        await self.grant()

    async def settle(
        self,
        service: QuotaService,
        attempt_id: str,
        outcome: AttemptOutcome = AttemptOutcome.RESULT,
        report: TryReport | None = ANSWERED,
        worker: str = "w1",
    ) -> None:
        """Settle an attempt; this service reads it."""
        self.running.discard(attempt_id)
        item = settle_request(self.session, self.asked[attempt_id], outcome).model_copy(update={"report": report})
        body = SettleBatch(incarnation=worker, items=[item]).to_wire()
        await service.settles(DirectDelivery(body, SETTLE.key, LEDGER.name, SETTLE.key))
        await self.grant()

    async def grant(self) -> None:
        for service in self.living():
            await service.queue.grant_quotas()

    def waiting(self) -> list[Admit]:
        """The admits without an answer, which their worker repeats."""
        return [admit for attempt_id, admit in self.asked.items() if attempt_id not in self.answers]

    async def count_running(self) -> int:
        """How many calls of live workers the ledger has as running."""
        moment_sql = (
            "SELECT count(*) FROM call JOIN worker USING (incarnation) WHERE call.state = 'running'"
            " AND worker.lease_until > ?"
        )
        rows = await self.ledger.transact(lambda moment: execute(moment_sql, moment.now))
        return int(rows[0][0])

    async def publish(self, exchange: Exchange, routing_key: str, envelope: Envelope, **_: object) -> None:
        """The broker of this fleet (`Bus.publish`)."""
        if exchange is PROBE:
            service = self.services.get(routing_key)
            if service is None or not (service.is_alive and service.is_connected):
                raise Unroutable("no such queue")
            fields = {each.name for each in dataclasses.fields(DirectDelivery)}
            given = {name: getattr(envelope, name) for name in fields & {"reply_to", "correlation_id", "type", "body"}}
            await service.admits(DirectDelivery(exchange=exchange.name, routing_key=routing_key, **given))
            return
        assert exchange is REPLY
        for item in AdmitReply.from_wire(envelope.body).items:
            self.answers[item.attempt_id] = item
            if item.is_grant and item.attempt_id in self.asked:  # else its worker is gone
                self.running.add(item.attempt_id)
        self.most_running = max(self.most_running, len(self.running))
