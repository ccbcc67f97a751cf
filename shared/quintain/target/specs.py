"""What a target declares before a run: configuration slots, controllables, observables and queries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quintain.target.domain import SecurityDomainTag

#: The configuration slot of a target that calls models: it receives the token of a child session.
SESSION_SLOT = "quintain_session"


@dataclass(frozen=True)
class Controllable:
    """A point where a value may be injected during a run; ``value_type`` is text, json, modifier or binary.

    Example::

        Controllable("search", user, "The search tool")
    """

    name: str
    security_domain: SecurityDomainTag
    description: str = ""
    value_type: str = "text"


@dataclass(frozen=True)
class Observable:
    """Something that can be observed; ``observable_type`` is text, code, config or json.

    Example::

        Observable("transcript", user, "The whole conversation")
    """

    name: str
    security_domain: SecurityDomainTag
    description: str = ""
    observable_type: str = "text"


@dataclass(frozen=True)
class ObservableValue:
    """An observable with its value, known before any run.

    Example::

        ObservableValue(Observable("system_prompt", user), "You are a helpful assistant.")
    """

    observable: Observable
    content: Any = None


@dataclass(frozen=True)
class ConfigSpec:
    """A configuration slot, set to a text before a run; ``description`` explains its format.

    Example::

        ConfigSpec("prompt", user, "The user's prompt, as plain text")
    """

    name: str
    security_domain: SecurityDomainTag
    description: str


@dataclass(frozen=True)
class QueryParam:
    """A parameter of a query; its value is text.

    Example::

        QueryParam("path", "The path of the file to read")
    """

    name: str
    description: str


@dataclass(frozen=True)
class QuerySpec:
    """A query that an evaluator asks after a run, answered with text; it may have side effects.

    Example::

        QuerySpec("read_file", "The content of a file", [QueryParam("path", "The path of the file")])
    """

    name: str
    description: str
    params: list[QueryParam] = field(default_factory=list)
