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
    """One trust boundary; ``parent`` is the one around it, None for a root."""

    name: str
    parent: SecurityDomainTag | None = None

    def includes(self, other: SecurityDomainTag) -> bool:
        """Whether ``other`` is this tag or lies beneath it."""
        return any(tag is self for tag in ancestors(other))


def ancestors(tag: SecurityDomainTag) -> Iterator[SecurityDomainTag]:
    """The tag, its parent, and so on to the root."""
    current: SecurityDomainTag | None = tag
    while current is not None:
        yield current
        current = current.parent


class SecurityDomain:
    """The tags of one target, in the order given.

    Raises `ValueError` where two tags share a name, or a tag's parent is not among them.
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
        """Every tag."""
        return self._tags

    @property
    def roots(self) -> list[SecurityDomainTag]:
        """The tags without a parent."""
        return [tag for tag in self._tags if tag.parent is None]

    def distinct_combinations(self) -> list[frozenset[SecurityDomainTag]]:
        """Every scope worth testing, the empty one too: no tag together with one around it, which covers it.

        Exponential in the width of the forest.
        """
        return _combine(self._antichains(root) for root in self.roots)

    def _antichains(self, node: SecurityDomainTag) -> list[frozenset[SecurityDomainTag]]:
        children = [tag for tag in self._tags if tag.parent is not None and tag.parent.name == node.name]
        return [*_combine(self._antichains(child) for child in children), frozenset({node})]


def _combine(trees: Iterator[list[frozenset[SecurityDomainTag]]]) -> list[frozenset[SecurityDomainTag]]:
    return [frozenset().union(*combination) for combination in product(*trees)]


#: What an attacker may touch: everything that one of these tags includes.
Scope = frozenset[SecurityDomainTag]


def scope_includes(scope: Scope, tag: SecurityDomainTag) -> bool:
    """Whether one of the scope's tags includes this one; an empty scope includes nothing."""
    return any(scope_tag.includes(tag) for scope_tag in scope)
