"""Where a tag object is found: the attribute of an imported module or of a class, as ``module:attribute``. No I/O.

A host describes its target's tags with their locations, and a controller uses the object at the same location of a
module that it has imported already. Nothing is imported here: a tag of a module that is not imported is in no scope.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from quintain.contracts.remote_target import TagPath
from quintain.target.tag_registry import Tag, tag_path

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
