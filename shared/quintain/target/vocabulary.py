"""Which classes a side speaks: ours, or superred's. On the wire a class goes by its name.

The two have the same names and fields, so everything else here works on either. superred is imported only when
somebody's class comes from it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from quintain import target as ours

#: The events that cross, by the names both sides know. A run's start and end are the controller's own.
EVENTS = ("Event", "ObservableEvent", "ControllablePreCallEvent", "ControllablePostCallEvent")
RESPONSES = ("EventResponse", "ControllableInjection", "ControllableNoInjection")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The classes of one side. Their instances are frozen dataclasses, made by keyword."""

    tag: Any
    domain: Any
    controllable: Any
    observable: Any
    observable_value: Any
    config_spec: Any
    query_spec: Any
    query_param: Any
    events: Mapping[str, Any]
    responses: Mapping[str, Any]

    def with_classes(self, classes: Iterable[type]) -> Vocabulary:
        """The same, and these event and response classes of somebody's own. Raises `TypeError` for any other."""
        events, responses = dict(self.events), dict(self.responses)
        for each in classes:
            if issubclass(each, self.events["Event"]):
                events[each.__name__] = each
            elif issubclass(each, self.responses["EventResponse"]):
                responses[each.__name__] = each
            else:
                raise TypeError(f"{each.__name__} is neither an Event nor an EventResponse")
        return dataclasses.replace(self, events=events, responses=responses)


def _from(module: ModuleType) -> Vocabulary:
    return Vocabulary(
        tag=module.SecurityDomainTag,
        domain=module.SecurityDomain,
        controllable=module.Controllable,
        observable=module.Observable,
        observable_value=module.ObservableValue,
        config_spec=module.ConfigSpec,
        query_spec=module.QuerySpec,
        query_param=module.QueryParam,
        events={name: getattr(module, name) for name in EVENTS if hasattr(module, name)},
        responses={name: getattr(module, name) for name in RESPONSES},
    )


OURS = _from(ours)


def superred_vocabulary() -> Vocabulary:
    """superred's classes. Raises `ImportError` where it is not installed."""
    return _from(importlib.import_module("superred.core.types"))


def vocabulary_of(target: type) -> Vocabulary:
    """The vocabulary that a target's class speaks: superred's where it inherits from it, else ours."""
    roots = {base.__module__.partition(".")[0] for base in target.__mro__}
    return superred_vocabulary() if "superred" in roots else OURS
