"""Security domain tags by path, with exactly one object per path.

Scopes are checked by identity, so a decoded tag must be the object that this side already holds: one given by the user
(in a scope or a domain), or one created here once. A tag created twice would silently put every event out of scope.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quintain.contracts.remote_target import TagPath


class Tag(Protocol):
    """A security domain tag, of quintain or superred."""

    @property
    def name(self) -> str:
        """The tag's name, unique within its domain."""

    @property
    def parent(self) -> Tag | None:
        """The enclosing tag, None for a root."""


class TagConstructor(Protocol):
    """Creates tags: `quintain.SecurityDomainTag` or superred's class."""

    def __call__(self, name: str, parent: Tag | None = None) -> Tag:
        """Create a tag."""


def tag_path(tag: Tag) -> TagPath:
    """Return the names of the tag, its parent, and so on up to the root."""
    path = []
    current: Tag | None = tag
    while current is not None:
        path.append(current.name)
        current = current.parent
    return path


class TagRegistry:
    """The tags of one side, by path: the first one registered, else one created here."""

    def __init__(self, create: TagConstructor, known: Iterable[Tag] = ()) -> None:
        self._create = create
        self._registered: dict[tuple[str, ...], Tag] = {}
        self._created: dict[tuple[str, ...], Tag] = {}
        self.register(known)

    def register(self, tags: Iterable[Tag]) -> None:
        """Register these tags and their parents; the first tag registered under a path stays."""
        for tag in tags:
            current: Tag | None = tag
            while current is not None:
                self._registered.setdefault(tuple(tag_path(current)), current)
                current = current.parent

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
