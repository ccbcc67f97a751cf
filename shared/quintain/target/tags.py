"""Tags across the wire: by path, and always the same object on one side.

Scopes are checked by identity, so whoever decodes a tag must hand out the one its side already holds: those the user
gave (a scope, a domain), else one made here, once, and shared by all instances of a target in this process. A tag
built twice would put every event out of scope, in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quintain.contracts.hosted import TagPath


class TagLike(Protocol):
    """A security domain's tag, ours or superred's."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> TagLike | None: ...


class TagClass(Protocol):
    """What makes such a tag."""

    def __call__(self, name: str, parent: TagLike | None = None) -> TagLike: ...


def path_of(tag: TagLike) -> TagPath:
    """The tag's name and those around it, up to the root."""
    path = []
    current: TagLike | None = tag
    while current is not None:
        path.append(current.name)
        current = current.parent
    return path


class TagBook:
    """The tags one side holds, by path. The first one given under a path stays; one made here gives way to it."""

    def __init__(self, make: TagClass, known: Iterable[TagLike] = ()) -> None:
        self._make = make
        self._given: dict[tuple[str, ...], TagLike] = {}
        self._made: dict[tuple[str, ...], TagLike] = {}
        self.learn(known)

    def learn(self, tags: Iterable[TagLike]) -> None:
        """Hand these out from now on, with their parents, where none was given under their paths."""
        for tag in tags:
            current: TagLike | None = tag
            while current is not None:
                self._given.setdefault(tuple(path_of(current)), current)
                current = current.parent

    def tag(self, path: TagPath) -> TagLike:
        """The tag of this path."""
        key = tuple(path)
        if key in self._given:
            return self._given[key]
        if key not in self._made:
            parent = self.tag(path[1:]) if len(path) > 1 else None
            self._made[key] = self._make(path[0], parent)
        return self._made[key]
