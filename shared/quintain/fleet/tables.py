"""The figures of a fleet as tables of text, which the Fleet page and `quintain status` draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, NamedTuple, TypeVar

from quintain.contracts.fleet_figures import (
    BudgetFigures,
    FleetFigures,
    Percentiles,
    QuotaCondition,
    QuotaStatus,
    ServiceFigures,
    TargetCondition,
    TargetFigures,
    WorkerCondition,
    WorkerFigures,
)
from quintain.contracts.money import dollars_text, picodollars
from quintain.contracts.quota import FailureCause

RowT = TypeVar("RowT")

#: What stands for a value that is not known or not there.
NOTHING = "-"

#: So many codes of errors are named.
MAX_CODES = 3

#: So many targets are named in a sentence.
MAX_NAMED = 5

_UNITS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def duration(milliseconds: float | None) -> str:
    """A duration in the largest unit that it fills, such as ``1.5 s``."""
    if milliseconds is None:
        return NOTHING
    for unit_ms, unit in _UNITS_MS:
        if milliseconds >= unit_ms:
            return f"{milliseconds / unit_ms:.1f} {unit}".replace(".0 ", " ")
    return f"{milliseconds:.0f} ms"


def times(percentiles: Percentiles | None) -> str:
    """The median and the 95th percentile."""
    return NOTHING if percentiles is None else f"{duration(percentiles.p50)} / {duration(percentiles.p95)}"


def named(names: Sequence[str]) -> str:
    """The first of these names."""
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, in the singular or the plural: ``1 call``, ``1,200 calls``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def amount(number: float | None) -> str:
    """A count, shortened from ten thousand on."""
    if number is None:
        return NOTHING
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= unit:
            return f"{number / (1000 if name == 'k' else unit):.1f} {name}"
    return f"{number:g}"


def errors(faults: Mapping[str, int]) -> str:
    """The errors by code, the most frequent first."""
    named = sorted(faults.items(), key=lambda one: (-one[1], one[0]))
    words = [f"{count} × {code}" for code, count in named[:MAX_CODES]]
    left = sum(count for _, count in named[MAX_CODES:])
    return ", ".join([*words, *([f"{left} others"] if left else [])]) or NOTHING


def time_of_day(milliseconds: int) -> str:
    """A time since the epoch, as hours, minutes and seconds in UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%H:%M:%S} UTC"


def date_and_time(milliseconds: int | None) -> str:
    """A time since the epoch in UTC; of a card, whose times may be any number."""
    try:
        return NOTHING if milliseconds is None else f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%F %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return NOTHING


def ends_in(budget: BudgetFigures) -> str:
    """When a budget is spent, at the rate of the last minute."""
    if budget.is_spent:
        return "spent"
    return NOTHING if budget.ends_in_ms is None else f"in {duration(budget.ends_in_ms)}"


def share(used: int, of: int) -> int:
    """A part of a whole in percent, rounded down: 100 only of all of it."""
    return 100 if of <= 0 else min(100, used * 100 // of)


class Cell(NamedTuple):
    """A cell; ``mark`` (passed, in-doubt or failed) is a color of pages, ``under`` stands below, ``share`` is a bar."""

    text: str
    mark: str = ""
    under: str = ""
    share: int | None = None

    @property
    def line(self) -> str:
        """The texts in one line."""
        return f"{self.text} ({self.under})" if self.under and self.under != self.text else self.text


class Column(NamedTuple):
    """A column of words, or of numbers, which stand on the right."""

    title: str
    is_words: bool = False


class TableRow(NamedTuple):
    """A row; ``key`` is what it is about."""

    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``noun`` is what a row is about, ``empty`` what is said where there is none, ``note`` is a remark."""

    title: str
    noun: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    empty: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Layout(Generic[RowT]):
    """What a table shows of its rows: the first column is the row's name."""

    title: str
    noun: str
    empty: str
    key: Callable[[RowT], str]
    columns: Sequence[tuple[str, bool, Callable[[RowT], Cell | str]]]

    def table(self, rows: Iterable[RowT], note: str = "") -> Table:
        """Return the table of these rows."""
        return Table(
            title=self.title,
            noun=self.noun,
            columns=tuple(Column(title, is_words) for title, is_words, _ in self.columns),
            rows=tuple(
                TableRow(
                    self.key(row),
                    tuple(Cell(cell) if isinstance(cell := get(row), str) else cell for _, _, get in self.columns),
                )
                for row in rows
            ),
            empty=self.empty,
            note=note,
        )


def fleet_facts(figures: FleetFigures) -> list[tuple[str, str]]:
    """The sums of a fleet, as titles and values."""
    return [
        ("Calls per minute", amount(figures.calls_per_minute)),
        ("In flight", amount(figures.running)),
        ("Waiting in queues", amount(figures.queued)),
        ("Targets", str(len(figures.targets))),
        ("Workers", str(len(figures.workers))),
    ]


def fleet_tables(figures: FleetFigures, targets: Sequence[TargetFigures] | None = None) -> list[Table]:
    """Return the tables of a fleet; ``targets`` are those to show, by default all."""
    left_out = f"{figures.more_sessions} older sessions are left out" if figures.more_sessions else ""
    return [
        _TARGETS.table(figures.targets if targets is None else targets),
        quota_table(figures.quotas),
        _WORKERS.table(figures.workers),
        _BUDGETS.table(figures.budgets, left_out),
        _SERVICES.table(figures.services),
    ]


def _target_state(target: TargetFigures) -> Cell:
    if target.paused_until is not None:
        return Cell(f"paused until {time_of_day(target.paused_until)}", "in-doubt")
    is_ready = target.condition is TargetCondition.READY
    return Cell("ready", "passed") if is_ready else Cell("no worker", "failed")


_TARGETS: Final[_Layout[TargetFigures]] = _Layout(
    "Targets",
    "target",
    "No target is shown.",
    lambda target: target.name,
    (
        ("Target", True, lambda target: Cell(target.name, under=target.model or target.provider)),
        ("State", True, _target_state),
        ("Queue", False, lambda target: amount(target.queued)),
        ("In flight", False, lambda target: f"{target.running} of {target.limit}"),
        ("Workers", False, lambda target: amount(target.workers)),
        ("Calls/min", False, lambda target: amount(target.calls_per_minute)),
        ("Wait in queue", False, lambda target: times(target.wait)),
        ("Service time", False, lambda target: times(target.service)),
        ("Errors", True, lambda target: errors(target.faults)),
        ("Tokens in / out", False, lambda target: f"{amount(target.input_tokens)} / {amount(target.output_tokens)}"),
        ("Cost", False, lambda target: _usd(target.cost_usd) if target.cost_usd else NOTHING),
    ),
)


def quota_table(quotas: Iterable[QuotaStatus]) -> Table:
    """Return the table of these quotas."""
    return _QUOTAS.table(quotas)


def _quota_state(quota: QuotaStatus) -> Cell:
    probes = f", next try {time_of_day(min(quota.out_targets.values()))}" if quota.out_targets else ""
    match quota.condition:
        case QuotaCondition.REFUSED:
            return Cell("key refused", "failed", quota.reason or "")
        case QuotaCondition.OUT:
            return Cell(f"no answer since {time_of_day(quota.out_since or 0)}{probes}", "failed", quota.reason or "")
        case QuotaCondition.PAUSED:
            return Cell(f"paused until {time_of_day(quota.paused_until or 0)}", "in-doubt", quota.reason or "")
    if quota.out_targets:
        return Cell(f"no answer of {', '.join(sorted(quota.out_targets))}{probes}", "in-doubt", quota.reason or "")
    return Cell("open", "passed")


#: What mends a provider that does not answer.
_MENDS: Final = {
    FailureCause.WRONG_ADDRESS: "correct base_url (url of an agent), or the name or the certificate there",
    FailureCause.NOT_TAKEN: "start what serves there, or correct base_url (url of an agent)",
    FailureCause.NOT_FOUND: "correct base_url, which ends in /v1 at most servers, or model",
}


def provider_trouble(quota: QuotaStatus) -> tuple[str, str] | None:
    """Return what is wrong with the provider of a quota, in a sentence, and what mends it; None where nothing is."""
    mend = "calls go on when it answers" if quota.cause is None else _MENDS[quota.cause]
    who, waiting = f"quota {quota.name} ({named(quota.targets)})", f"{quota.waiting} calls wait"
    if quota.condition is QuotaCondition.REFUSED:
        text, mend = f"The provider refuses the key of {who}", "replace the key, and restart the workers"
    elif quota.out_since is not None:
        text = f"Q{who[1:]} has had no answer since {time_of_day(quota.out_since)}, and {waiting}"
    elif quota.out_targets:
        text = f"Q{who[1:]} has no answer of {named(sorted(quota.out_targets))}, and {waiting}"
    elif quota.cause is not None:
        text = f"The provider of {who} knows no such path or model"
    else:
        return None
    return text if quota.reason is None else f"{text}: {quota.reason}", mend


_CUTS: Final = {"in_flight": "calls in flight", "rate": "rate"}


def _last_cut(quota: QuotaStatus) -> str:
    """Which limit a 429 lowered last, and when."""
    if quota.last_cut_at is None or quota.last_cut_cause is None:
        return NOTHING
    return f"{_CUTS.get(quota.last_cut_cause, quota.last_cut_cause)}, {time_of_day(quota.last_cut_at)}"


def _quota_wait(quota: QuotaStatus) -> str:
    estimate = "" if quota.estimated_seconds is None else f", {duration(quota.estimated_seconds * 1000)}"
    return f"{amount(quota.waiting)}{estimate}"


def _rate(per_minute: float | None) -> str:
    return amount(None if per_minute is None else round(per_minute, 1))


_QUOTAS: Final[_Layout[QuotaStatus]] = _Layout(
    "Quotas",
    "quota",
    "No target has a quota.",
    lambda quota: quota.id,
    (
        ("Quota", True, lambda quota: Cell(quota.name, under=", ".join(quota.targets))),
        ("State", True, _quota_state),
        ("In flight", False, lambda quota: f"{quota.in_flight} of {quota.limit}"),
        ("Waiting", False, _quota_wait),
        ("Requests/min", False, lambda quota: _rate(quota.requests_per_minute)),
        ("Tokens/min", False, lambda quota: _rate(quota.tokens_per_minute)),
        ("429s", False, lambda quota: amount(quota.throttled)),
        ("Last cut", True, _last_cut),
    ),
)

_WORKER_STATES: Final = {
    WorkerCondition.LIVE: Cell("live", "passed"),
    WorkerCondition.DRAINING: Cell("draining", "in-doubt"),
    WorkerCondition.SILENT: Cell("does not answer", "failed"),
    WorkerCondition.LOST: Cell("lost", "failed"),
}

_WORKERS: Final[_Layout[WorkerFigures]] = _Layout(
    "Workers",
    "worker",
    "No worker has a lease.",
    lambda worker: worker.worker_id,
    (
        ("Worker", True, lambda worker: worker.worker_id),
        ("State", True, lambda worker: _WORKER_STATES[worker.condition]),
        ("In flight", False, lambda worker: str(worker.running)),
        ("Longest call", False, lambda worker: duration(worker.longest_call_ms)),
        ("Slots", False, lambda worker: amount(worker.slots)),
        ("Targets", False, lambda worker: amount(None if worker.targets is None else len(worker.targets))),
        ("Version", True, lambda worker: worker.version or NOTHING),
        ("Started", True, lambda worker: date_and_time(worker.started_at)),
    ),
)


def _budget_name(budget: BudgetFigures) -> Cell:
    under = budget.session_id if budget.parent_id is None else f"{budget.session_id}, under {budget.parent_id}"
    return Cell(budget.label or budget.session_id, under=f"{under}, paused" if budget.state == "paused" else under)


def _budget_share(budget: BudgetFigures) -> Cell:
    percent = share(budget.used, budget.max_calls)
    return Cell(f"{percent} %", share=percent)


def _budget_money(budget: BudgetFigures) -> Cell:
    """What a session spent, and below it what its unknown bills and its running tries may cost at most."""
    cost = budget.cost
    if cost is None:
        return Cell(NOTHING)
    is_known = not cost.unknown or cost.most_usd > 0
    spent = f"{'≥ ' if cost.unknown else ''}{_usd(cost.known_usd)}" if is_known else "unknown"
    doubtful = {"held": cost.held_usd, "reserved": cost.reserved_usd}
    under = ", ".join(f"≤ {_usd(usd)} {name}" for name, usd in doubtful.items() if usd)
    return Cell(spent if budget.max_cost_usd is None else f"{spent} of {_usd(budget.max_cost_usd)}", under=under)


def _usd(amount_usd: float) -> str:
    return dollars_text(picodollars(amount_usd))


_BUDGETS: Final[_Layout[BudgetFigures]] = _Layout(
    "Budgets",
    "session",
    "No session is open.",
    lambda budget: budget.session_id,
    (
        ("Session", True, _budget_name),
        ("Default target", True, lambda budget: budget.default_target),
        ("Used", False, lambda budget: str(budget.used)),
        ("Of", False, lambda budget: str(budget.max_calls)),
        ("Share", False, _budget_share),
        ("Cost", False, _budget_money),
        ("Calls/min", False, lambda budget: amount(budget.calls_per_minute)),
        ("Ends", False, lambda budget: Cell(ends_in(budget), "failed" if budget.is_spent else "")),
    ),
)

_SERVICES: Final[_Layout[ServiceFigures]] = _Layout(
    "Other services",
    "service",
    "None has answered yet.",
    lambda service: service.id,
    (
        ("Service", True, lambda service: Cell(service.service, under=service.ledger or "")),
        ("Id", True, lambda service: service.id),
        ("State", True, lambda s: _WORKER_STATES[WorkerCondition.SILENT if s.is_silent else WorkerCondition.LIVE]),
        ("In flight", False, lambda service: str(service.in_flight)),
        ("Version", True, lambda service: service.version),
        ("Started", True, lambda service: date_and_time(service.started_at)),
    ),
)
