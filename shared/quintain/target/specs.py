"""What a target declares before a run: configuration slots, controllables, observables and queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quintain.target.domain import SecurityDomainTag

#: The slot of a target that calls models itself: it is filled with the token of a session of its own.
SESSION_SLOT = "quintain_session"


@dataclass(frozen=True)
class Controllable:
    """A point where a value may be injected while the target runs. ``value_type``: text, json, modifier or binary."""

    name: str
    security_domain: SecurityDomainTag
    description: str = ""
    value_type: str = "text"


@dataclass(frozen=True)
class Observable:
    """A kind of thing that can be seen. ``observable_type``: text, code, config or json."""

    name: str
    security_domain: SecurityDomainTag
    description: str = ""
    observable_type: str = "text"


@dataclass(frozen=True)
class ObservableValue:
    """An observable with what is to be seen, known before any run."""

    observable: Observable
    content: Any = None


@dataclass(frozen=True)
class ConfigSpec:
    """A slot that a task fills before a run, with text; the description says in what form."""

    name: str
    security_domain: SecurityDomainTag
    description: str


@dataclass(frozen=True)
class QueryParam:
    """A parameter of a query: text."""

    name: str
    description: str


@dataclass(frozen=True)
class QuerySpec:
    """A question that an evaluator asks after a run, answered with text; it may act."""

    name: str
    description: str
    params: list[QueryParam] = field(default_factory=list)
