"""Security domain tags by path, with exactly one object per path.

Scopes are checked by identity, so a decoded tag must be the object that this side already holds: one given by the user
(in a scope or a domain), or one created here once. A tag created twice would silently put every event out of scope.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quintain.contracts.remote_target import TagPath


class Tag(Protocol):
    """A security domain's tag, ours or superred's."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> Tag | None: ...


class TagConstructor(Protocol):
    """What makes such a tag."""

    def __call__(self, name: str, parent: Tag | None = None) -> Tag: ...


def tag_path(tag: Tag) -> TagPath:
    """The tag's name and those around it, up to the root."""
    path = []
    current: Tag | None = tag
    while current is not None:
        path.append(current.name)
        current = current.parent
    return path


class TagRegistry:
    """The tags one side holds, by path. The first one given under a path stays; one made here gives way to it."""

    def __init__(self, create: TagConstructor, known: Iterable[Tag] = ()) -> None:
        self._create = create
        self._registered: dict[tuple[str, ...], Tag] = {}
        self._created: dict[tuple[str, ...], Tag] = {}
        self.register(known)

    def register(self, tags: Iterable[Tag]) -> None:
        """Hand these out from now on, with their parents, where none was given under their paths."""
        for tag in tags:
            current: Tag | None = tag
            while current is not None:
                self._registered.setdefault(tuple(tag_path(current)), current)
                current = current.parent

    def get(self, path: TagPath) -> Tag:
        """The tag of this path."""
        key = tuple(path)
        if key in self._registered:
            return self._registered[key]
        if key not in self._created:
            parent = self.get(path[1:]) if len(path) > 1 else None
            self._created[key] = self._create(path[0], parent)
        return self._created[key]
