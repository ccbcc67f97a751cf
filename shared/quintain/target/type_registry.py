"""The target classes in use: quintain's or superred's, by the class names used on the wire.

Both have the same names and fields. superred is imported only when a target's class comes from it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from quintain import target as ours

#: The event classes that are sent over the wire. The start and end of a run are events of the controller itself.
EVENT_NAMES = ("Event", "ObservableEvent", "ControllablePreCallEvent", "ControllablePostCallEvent")
RESPONSE_NAMES = ("EventResponse", "ControllableInjection", "ControllableNoInjection")


@dataclass(frozen=True, slots=True)
class TypeRegistry:
    """The classes of one side; their instances are frozen dataclasses, created with keyword arguments."""

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

    def with_classes(self, classes: Iterable[type]) -> TypeRegistry:
        """Return a registry with additional event and response classes. Raises `TypeError` for any other class."""
        events, responses = dict(self.events), dict(self.responses)
        for cls in classes:
            if issubclass(cls, self.events["Event"]):
                events[cls.__name__] = cls
            elif issubclass(cls, self.responses["EventResponse"]):
                responses[cls.__name__] = cls
            else:
                raise TypeError(f"{cls.__name__} is neither an Event nor an EventResponse")
        return dataclasses.replace(self, events=events, responses=responses)


def _registry_from_module(module: ModuleType) -> TypeRegistry:
    return TypeRegistry(
        tag=module.SecurityDomainTag,
        domain=module.SecurityDomain,
        controllable=module.Controllable,
        observable=module.Observable,
        observable_value=module.ObservableValue,
        config_spec=module.ConfigSpec,
        query_spec=module.QuerySpec,
        query_param=module.QueryParam,
        events={name: getattr(module, name) for name in EVENT_NAMES if hasattr(module, name)},
        responses={name: getattr(module, name) for name in RESPONSE_NAMES},
    )


QUINTAIN_TYPES = _registry_from_module(ours)


def superred_types() -> TypeRegistry:
    """Return superred's classes. Raises `ImportError` if superred is not installed."""
    return _registry_from_module(importlib.import_module("superred.core.types"))


def types_of_target(target: type) -> TypeRegistry:
    """Return the classes that a target's class uses: superred's if it inherits from superred, else quintain's."""
    roots = {base.__module__.partition(".")[0] for base in target.__mro__}
    return superred_types() if "superred" in roots else QUINTAIN_TYPES
