"""The target classes and security domain tags in use, found by the names and paths that are used on the wire. No I/O.

Classes are quintain's or superred's. Both have the same names and fields; superred is imported only when a target's
class comes from it.

Scopes are checked by identity, so a decoded tag must be the object that this side already holds: one given by the user
(in a scope or a domain), or one created here once. A tag created twice would silently put every event out of scope.

A tag's location is the attribute of an imported module or of a class, as ``module:attribute``. A host describes its
target's tags with their locations, and a controller uses the object at the same location of a module that it has
imported already. Nothing is imported here: a tag of a module that is not imported is in no scope.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import Any, Protocol

from quintain import target as ours
from quintain.contracts.remote_target import TagPath
from quintain.contracts.values import replace_surrogates
from quintain.target.types import ancestors

#: Modules with these names are another program in another process.
_PROGRAMS = frozenset({"__main__", "__mp_main__"})


def locate_tags(tags: Sequence[Tag], target_class: type) -> list[str]:
    """Return the location of each tag, or an empty string for a tag that is no attribute of a module or class.

    The modules and classes that the target's class inherits from are searched first.
    """
    found: dict[int, str] = {}
    wanted = {id(tag) for tag in tags}
    for owner, location_prefix in _namespaces(target_class):
        for name, value in list(vars(owner).items()):
            if id(value) in wanted:
                found.setdefault(id(value), location_prefix + name)
        if len(found) == len(wanted):
            break
    return [found.get(id(tag), "") for tag in tags]


def find_tag(location: str, path: TagPath, tag_class: Any) -> Tag | None:
    """Return the tag at this location, if its module is imported and the object there is a tag with this path."""
    module_name, _, attributes = location.partition(":")
    found: Any = sys.modules.get(module_name)
    for name in attributes.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found if isinstance(found, tag_class) and tag_path(found) == path else None


def find_tags_by_path(path: TagPath, tag_class: Any) -> dict[str, Tag]:
    """Return the tags with this path in all imported modules, each object once, by location."""
    found: dict[int, tuple[str, Tag]] = {}
    for module in _imported_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, tag_class) and tag_path(value) == path:
                found.setdefault(id(value), (f"{module.__name__}:{name}", value))
    return dict(found.values())


def _namespaces(target_class: type) -> Iterator[tuple[Any, str]]:
    """Yield the modules and classes to search, each with the start of its attributes' locations."""
    for cls in target_class.__mro__:
        module = sys.modules.get(cls.__module__)
        if module is None or cls.__module__ in _PROGRAMS:
            continue
        yield module, f"{cls.__module__}:"
        yield cls, f"{cls.__module__}:{cls.__qualname__}."
    for module in _imported_modules():
        if module.__name__ not in _PROGRAMS:
            yield module, f"{module.__name__}:"


def _imported_modules() -> list[ModuleType]:
    modules: list[object] = list(sys.modules.values())
    return [module for module in modules if isinstance(module, ModuleType)]


class Tag(Protocol):
    """A security domain tag, of quintain or superred."""

    @property
    def name(self) -> str:
        """The tag's name, unique within its domain."""

    @property
    def parent(self) -> Tag | None:
        """The enclosing tag, None for a root."""


def tag_path(tag: Tag) -> TagPath:
    """Return the names of the tag, its parent, and so on up to the root."""
    return [each.name for each in ancestors(tag)]


class TagRegistry:
    """The tags of one side, by path: the first one registered, else one created here."""

    def __init__(self, create: Callable[[str, Any], Tag], known: Iterable[Tag] = ()) -> None:
        self._create = create
        self._registered: dict[tuple[str, ...], Tag] = {}
        self._created: dict[tuple[str, ...], Tag] = {}
        self.register(known)

    def register(self, tags: Iterable[Tag]) -> None:
        """Register these tags and their parents; the first tag registered under a path stays."""
        for tag in tags:
            for each in ancestors(tag):
                self._registered.setdefault(tuple(tag_path(each)), each)

    def is_registered(self, path: TagPath) -> bool:
        """Whether a tag with this path was registered."""
        return tuple(path) in self._registered

    def get(self, path: TagPath) -> Tag:
        """Return the tag with this path, creating it if necessary."""
        key = tuple(path)
        if key in self._registered:
            return self._registered[key]
        if key not in self._created:
            parent = self.get(path[1:]) if len(path) > 1 else None
            self._created[key] = self._create(path[0], parent)
        return self._created[key]


#: The event classes that are sent over the wire. The start and end of a run are events of the controller itself.
EVENT_NAMES = ("Event", "ObservableEvent", "ControllablePreCallEvent", "ControllablePostCallEvent")
RESPONSE_NAMES = ("EventResponse", "ControllableInjection", "ControllableNoInjection")


@dataclass(frozen=True, slots=True)
class TypeRegistry:
    """The classes of one side: those of a module, whose events and responses can be added to."""

    module: Any
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
    events = {name: getattr(module, name) for name in EVENT_NAMES if hasattr(module, name)}
    return TypeRegistry(module, events, {name: getattr(module, name) for name in RESPONSE_NAMES})


QUINTAIN_TYPES = _registry_from_module(ours)


def superred_types() -> TypeRegistry:
    """Return superred's classes. Raises `ImportError` if superred is not installed."""
    return _registry_from_module(importlib.import_module("superred.core.types"))


def types_of_target(target: type) -> TypeRegistry:
    """Return the classes that a target's class uses: superred's if it inherits from superred, else quintain's."""
    roots = {base.__module__.partition(".")[0] for base in target.__mro__}
    return superred_types() if "superred" in roots else QUINTAIN_TYPES


def safe_str(value: object, to_str: Callable[[object], str] = str) -> str:
    """Convert a value to text; if that raises, return its class and the error's class."""
    try:
        return replace_surrogates(to_str(value))
    except Exception as error:
        # A ``__str__`` of the target may raise anything, and must not prevent the message from being sent.
        return f"<{type(value).__name__} that cannot be written: {type(error).__name__}>"


def to_json_text(content: object) -> str:
    """Convert any value to ASCII JSON text: times in ISO format, unknown objects as their repr, as superred does.

    Never raises: a value that cannot be serialised at all becomes its repr.
    """
    try:
        return json.dumps(content, default=_json_default)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(safe_str(content, repr))


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else safe_str(value, repr)
