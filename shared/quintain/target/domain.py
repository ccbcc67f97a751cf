"""Security domains: a forest of tags that a target defines over everything it exposes.

A tag includes its descendants. Tags are compared by identity, as in superred, so a decoder must return the tags that
its side already holds (`quintain.target.tag_registry`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class SecurityDomainTag:
    """One trust boundary; ``parent`` is the enclosing one, None for a root.

    Example::

        user = SecurityDomainTag("user")
        profile = SecurityDomainTag("profile", parent=user)
    """

    name: str
    parent: SecurityDomainTag | None = None

    def includes(self, other: SecurityDomainTag) -> bool:
        """Return whether ``other`` is this tag or one of its descendants."""
        return any(tag is self for tag in ancestors(other))


def ancestors(tag: SecurityDomainTag) -> Iterator[SecurityDomainTag]:
    """Yield the tag, its parent, and so on up to the root."""
    current: SecurityDomainTag | None = tag
    while current is not None:
        yield current
        current = current.parent


class SecurityDomain:
    """The tags of one target, in the given order.

    Raises `ValueError` if two tags share a name, or if a tag's parent is missing.

    Example::

        domain = SecurityDomain([user, profile])
    """

    def __init__(self, tags: Sequence[SecurityDomainTag]) -> None:
        names = [tag.name for tag in tags]
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise ValueError(f"Two tags share a name: {', '.join(sorted(duplicates))}")
        for tag in tags:
            if tag.parent is not None and tag.parent.name not in names:
                raise ValueError(f"Tag {tag.name!r} lies in {tag.parent.name!r}, which is not in the domain")
        self._tags = tuple(tags)

    @property
    def tags(self) -> tuple[SecurityDomainTag, ...]:
        """All tags, in the given order."""
        return self._tags

    @property
    def roots(self) -> list[SecurityDomainTag]:
        """The tags without a parent."""
        return [tag for tag in self._tags if tag.parent is None]

    def distinct_combinations(self) -> list[frozenset[SecurityDomainTag]]:
        """Return every distinct scope, including the empty one: sets of tags of which none includes another.

        The number is exponential in the width of the forest.
        """
        return _combine(self._antichains(root) for root in self.roots)

    def _antichains(self, node: SecurityDomainTag) -> list[frozenset[SecurityDomainTag]]:
        children = [tag for tag in self._tags if tag.parent is not None and tag.parent.name == node.name]
        return [*_combine(self._antichains(child) for child in children), frozenset({node})]


def _combine(trees: Iterator[list[frozenset[SecurityDomainTag]]]) -> list[frozenset[SecurityDomainTag]]:
    return [frozenset().union(*combination) for combination in product(*trees)]


#: What an attacker may touch: everything included by one of these tags.
Scope = frozenset[SecurityDomainTag]


def scope_includes(scope: Scope, tag: SecurityDomainTag) -> bool:
    """Return whether one of the scope's tags includes this tag; an empty scope includes nothing.

    Example::

        scope_includes(frozenset({user}), profile)  # True
    """
    return any(scope_tag.includes(tag) for scope_tag in scope)
