"""The bill of a run or a session: what its calls took, by target, by grader and by role. No I/O.

Everything that tells these figures takes them from `Bill.of`, whose lines are the ledger's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pydantic import Field

from quintain.config.prices import Price
from quintain.contracts.message import Message
from quintain.contracts.money import HeldTries, dollars_text, picodollars
from quintain.contracts.session import AGENTS, CostUsage, Info, Usage, UsageLine

#: Amounts below one dollar are shown with four decimal places, larger ones with two.
_CENT_QUANTUM, _SUBDOLLAR_QUANTUM = Decimal("0.01"), Decimal("0.0001")

_NO_PRICES: Final[Mapping[str, Price]] = MappingProxyType({})

#: What stands for a cost of which nothing is known.
UNKNOWN = "unknown"


#: Who asks where a simulated user speaks, in the place of a grader's name; no grader may have this name.
SIMULATED_USER: Final = "simulated user"


class CallRole(StrEnum):
    """What calls are for: targets are asked, agents ask others for that, simulated users speak, and graders judge."""

    ASKED = "asked"
    AGENT = "agent"
    USER = "user"
    JUDGE = "judge"

    @classmethod
    def of(cls, grader: str | None) -> CallRole:
        """The role of calls that this grader made; None is nobody."""
        if grader is None:
            return cls.ASKED
        return {SIMULATED_USER: cls.USER, AGENTS: cls.AGENT}.get(grader, cls.JUDGE)


class Bill(Message):
    """What calls took in all, by target, by grader and by role.

    ``target_roles`` are what the calls of each target are for, and ``agents`` what agents' own calls took, by target.
    ``is_complete``: no call of an earlier session is missing. ``cache_saved_usd`` is what the caches of providers with
    known prices saved, less than 0 where writing to them cost more; None where none was used. ``wrong_bounds`` are the
    targets of which a try cost so many US dollars more than was reserved for it. ``is_soft``: under a limit in money
    some tries were reserved by an estimate. ``held`` are the tries for which it holds money, and ``release_command`` is
    how an administrator who knows their bill frees it.
    """

    total: Usage = Usage()
    targets: dict[str, Usage] = Field(default_factory=dict)
    graders: dict[str, Usage] = Field(default_factory=dict)
    roles: dict[CallRole, Usage] = Field(default_factory=dict)
    target_roles: dict[str, list[CallRole]] = Field(default_factory=dict)
    agents: dict[str, Usage] = Field(default_factory=dict)
    is_complete: bool = True
    cache_saved_usd: float | None = None
    wrong_bounds: dict[str, float] = Field(default_factory=dict)
    is_soft: bool = False
    held: list[HeldTries] = Field(default_factory=list)
    release_command: str | None = None

    @classmethod
    def of(
        cls, lines: Iterable[UsageLine], *, is_complete: bool = True, prices: Mapping[str, Price] = _NO_PRICES
    ) -> Bill:
        """The bill of these lines."""
        total, targets, graders, roles = Usage(), dict[str, Usage](), dict[str, Usage](), dict[CallRole, Usage]()
        target_roles, agents = dict[str, list[CallRole]](), dict[str, Usage]()
        for line in lines:
            total += line
            targets[line.target] = targets.get(line.target, Usage()) + line
            role = CallRole.of(line.grader)
            roles[role] = roles.get(role, Usage()) + line
            if role not in target_roles.setdefault(line.target, []):
                target_roles[line.target].append(role)
            if line.agent is not None:
                agents[line.agent] = agents.get(line.agent, Usage()) + line
            if line.grader is not None and role is CallRole.JUDGE:
                graders[line.grader] = graders.get(line.grader, Usage()) + line
        return cls(
            total=total,
            targets=targets,
            graders=graders,
            roles=roles,
            target_roles=target_roles,
            agents=agents,
            is_complete=is_complete,
            cache_saved_usd=_cache_saved(targets, prices),
        )

    def whole_cost(self, target: str) -> CostUsage:
        """What the answers of a target cost, with what its agents called for them."""
        return self.targets[target].cost + self.agents.get(target, Usage()).cost

    def role_text(self, target: str) -> str:
        """Who asks this target, in words: those of a run before it told that are called graders."""
        names = {CallRole.AGENT: AGENTS, CallRole.USER: SIMULATED_USER, CallRole.ASKED: "asked"}
        roles = self.target_roles.get(target, [CallRole.JUDGE])
        return ", ".join(names.get(role, "graders") for role in roles)

    def with_info(self, info: Info | None) -> Bill:
        """The bill, with what the session of its last calls says of their limit in money."""
        if info is None:
            return self
        is_limited = info.cost is not None and info.cost.left_usd is not None
        is_soft = is_limited and info.cost is not None and info.cost.estimated > 0
        return self.with_fields(wrong_bounds=info.wrong_bounds or {}, is_soft=is_soft, held=info.held or [])

    @property
    def is_priced(self) -> bool:
        """Whether anything is known of what it cost."""
        return is_priced(self.total.cost)

    @property
    def text(self) -> str:
        """What it cost in all, in a few words."""
        return cost_text(self.total.cost, is_complete=self.is_complete) + (", soft limit" if self.is_soft else "")


def _cache_saved(targets: Mapping[str, Usage], prices: Mapping[str, Price]) -> float | None:
    tokens = {name: usage.token_usage for name, usage in targets.items() if name in prices}
    saved = [prices[name].saved(used) for name, used in tokens.items() if used.cached or used.cache_write]
    return float(sum(saved)) if saved else None


def is_priced(cost: CostUsage) -> bool:
    """Whether anything is known of a cost."""
    return not cost.unknown or cost.most_usd > 0


def dollars(usd: float | None, *, at_least: bool = False) -> str:
    """Format an amount of US dollars, such as ``$12.34`` or ``≥ $0.0021``; a dash for None."""
    if usd is None:
        return "-"
    amount = Decimal(str(usd))
    if 0 < amount < _SUBDOLLAR_QUANTUM:
        return f"{'≥ ' if at_least else ''}{dollars_text(picodollars(float(amount)))}"
    shown = amount.quantize(_CENT_QUANTUM if amount >= 1 or not amount else _SUBDOLLAR_QUANTUM)
    return f"{'≥ ' if at_least else ''}${shown:,}"


def cost_text(cost: CostUsage, *, is_complete: bool = True) -> str:
    """What calls cost, in a few words: what is known, and ``≤`` what unknown bills may add; never 0 for what is not."""
    if not is_priced(cost):
        return UNKNOWN
    doubtful = cost.held_usd + cost.reserved_usd
    held = f" + ≤ {dollars(doubtful)}" if doubtful else ""
    return f"{dollars(cost.known_usd, at_least=bool(cost.unknown) or not is_complete)}{held}"


def money_text(cost: CostUsage, limit: float | None) -> str:
    """What a session cost, and what it may cost, in words."""
    parts = [f"{dollars(cost.spent_usd)} spent"] if is_priced(cost) else []
    if cost.held_usd:
        parts.append(f"≤ {dollars(cost.held_usd)} of unknown bills")
    if cost.reserved_usd:
        parts.append(f"≤ {dollars(cost.reserved_usd)} for running tries")
    if cost.excess_usd:
        parts.append(f"{dollars(cost.excess_usd)} above what was reserved")
    if cost.unknown:
        parts.append(f"{cost.unknown} tries of unknown cost")
    if limit is not None:
        soft = f", soft: {cost.estimated} tries were reserved by an estimate" if cost.estimated else ""
        parts[-1] += f"; limit {dollars(limit)}{soft}"
    return ", ".join(parts)


def bill_rows(bill: Bill) -> Iterator[tuple[str, str, Usage]]:
    """The lines of the table of a bill but the sum: by what it is divided, the name, and what those calls took."""
    for name, usage in bill.targets.items():
        yield "target", name, usage
    for name, usage in bill.graders.items():
        yield "grader", name, usage
    if len(bill.roles) > 1:
        for role, usage in bill.roles.items():
            yield "role", role.value, usage


def tries_text(usage: Usage) -> str:
    """How many requests were sent to providers for how many calls, and how many of them may be billed as well."""
    unproven = f"; {usage.unproven_tries:,} failed or were lost, and may be billed too" if usage.unproven_tries else ""
    return f"provider requests {usage.tries:,} for {usage.calls:,} calls{unproven}"


def cost_line(bill: Bill | None) -> str | None:
    """What a run cost, in total, by target, and of its graders, as one line; None where nothing of it is known."""
    if bill is None or not bill.is_priced:
        return None
    by_cost = sorted(bill.targets.items(), key=lambda named: (-named[1].cost.known_usd, named[0]))
    parts = [", ".join(f"{name} {cost_text(usage.cost)}" for name, usage in by_cost if usage.calls or usage.tries)]
    if bill.roles.keys() - {CallRole.ASKED}:
        roles = [f"asked {cost_text(bill.roles.get(CallRole.ASKED, Usage()).cost)}"]
        for role, name in ((CallRole.AGENT, AGENTS), (CallRole.USER, SIMULATED_USER)):
            roles += [f"{name} {cost_text(bill.roles[role].cost)}"] if role in bill.roles else []
        if bill.graders:
            graders = ", ".join(f"{name} {cost_text(usage.cost)}" for name, usage in bill.graders.items())
            roles.append(f"graders {cost_text(bill.roles[CallRole.JUDGE].cost)} ({graders})")
        parts.append(", ".join(roles))
    wrong = "".join(f"; the bound of {name} was wrong by {dollars(usd)}" for name, usd in bill.wrong_bounds.items())
    told = "; ".join(filter(None, parts))
    return f"cost {bill.text}{': ' if told else ''}{told}{_cache_note(bill)}{wrong}"


def _cache_note(bill: Bill) -> str:
    """What the providers' caches saved, and of how many tokens; empty where none was used."""
    if (saved := bill.cache_saved_usd) is None:
        return ""
    tokens = bill.total.token_usage
    amount = f"cost {dollars(-saved)} more than it saved" if saved < 0 else f"saved {dollars(saved)}"
    return f"; cache {amount} ({tokens.cached or 0:,} tokens read, {tokens.cache_write or 0:,} written)"


def held_line(bill: Bill | None) -> str | None:
    """How much is held, for which tries, and the command by which it is released; None where nothing is held."""
    if bill is None or not bill.held:
        return None
    causes = ", ".join(f"{each.tries:,} × {each.cause}" for each in bill.held)
    amount, tries = dollars(sum(each.usd for each in bill.held)), sum(each.tries for each in bill.held)
    words = "1 try whose bill is" if tries == 1 else f"{tries:,} tries whose bill is"
    how = "" if bill.release_command is None else f"; with the vendor's bill, release it: {bill.release_command}"
    return f"{amount} is held for {words} not known ({causes}){how}"


def tries_line(bill: Bill | None) -> str | None:
    """How many requests a run sent to providers; None where that says no more than its calls."""
    if bill is None or (bill.total.tries == bill.total.calls and not bill.total.unproven_tries):
        return None
    return tries_text(bill.total)


#: The columns of the table of a bill, and what stands in them.
BILL_COLUMNS = (
    "by", "", "calls", "requests", "may be billed too", "input", "cached", "cache writes", "of these 1 h", "output",
    "reasoning", "cost",
)  # fmt: skip


def bill_cells(by: str, name: str, usage: Usage) -> tuple[str, ...]:
    """A row of the table of a bill."""
    tokens = usage.token_usage
    counts = (
        usage.calls,
        usage.tries,
        usage.unproven_tries,
        tokens.input,
        tokens.cached or 0,
        tokens.cache_write or 0,
        tokens.cache_write_1h or 0,
        tokens.output,
        tokens.reasoning or 0,
    )
    return (by, name, *(f"{count:,}" for count in counts), cost_text(usage.cost))
