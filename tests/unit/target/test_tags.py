"""Tags: found by module and attribute, never by name alone; of one side, by path, always the same object."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.remote_target import TargetDescriptor
from quintain.errors import ConfigError
from quintain.target import SecurityDomain, SecurityDomainTag, scope_includes
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES, TagRegistry, tag_path
from support.target_placements import ScriptedTarget

# Tags are the objects of modules imported on this side: found by module and attribute, never by name alone.


def package(name: str, monkeypatch: pytest.MonkeyPatch, root_name: str = "root") -> ModuleType:
    """A module with a target's tags: two attributes, and a parent that is none."""
    module = ModuleType(name)
    root = SecurityDomainTag(root_name)
    vars(module).update(USER=SecurityDomainTag("user", root), TOOLS=SecurityDomainTag("tools", root))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def described(module: ModuleType) -> TargetDescriptor:
    """The target of this module, as its host describes it on the wire."""
    tags = {"root": module.USER.parent, "user": module.USER, "tools": module.TOOLS}
    bot: Any = type("Bot", (ScriptedTarget,), {"types": QUINTAIN_TYPES, "__module__": module.__name__, **tags})
    return TargetDescriptor.from_wire(Codec(QUINTAIN_TYPES).describe(bot(None)).to_wire())


def controller_side(*tags: SecurityDomainTag) -> Codec:
    return Codec(QUINTAIN_TYPES, TagRegistry(QUINTAIN_TYPES.module.SecurityDomainTag, tags))


def test_the_tags_of_an_imported_module_are_its_own_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    bots = package("bots_here", monkeypatch)
    descriptor, side = described(bots), controller_side()
    assert descriptor.tag_locations == ["bots_here:Bot.root", "bots_here:USER", "bots_here:TOOLS"]
    assert side.unresolved_tags(descriptor) == []
    assert [id(tag) for tag in side.domain(descriptor).tags] == [id(bots.USER.parent), id(bots.USER), id(bots.TOOLS)]


@pytest.mark.parametrize("location", ["other_bots", "__main__"])
def test_a_tag_with_the_same_path_in_another_module_is_not_used(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = described(package("bots_there", monkeypatch))
    monkeypatch.delitem(sys.modules, "bots_there")
    package(location, monkeypatch)
    assert controller_side().unresolved_tags(descriptor) == ["root", "root/user", "root/tools"]


def test_an_object_with_another_path_at_the_same_place_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = described(package("bots_here", monkeypatch))
    changed = package("bots_here", monkeypatch)
    vars(changed).update(USER=SecurityDomainTag("user"), TOOLS="tools")
    assert controller_side().unresolved_tags(descriptor) == ["root", "root/user", "root/tools"]


def test_tags_that_are_passed_are_used_and_the_rest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bots = package("bots_there", monkeypatch)
    descriptor, side = described(bots), controller_side(bots.USER)
    monkeypatch.delitem(sys.modules, "bots_there")
    assert side.unresolved_tags(descriptor) == ["root/tools"]


def test_by_path_finds_the_one_tag_with_this_path_and_refuses_two(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = described(package("bots_there", monkeypatch, "bots"))
    monkeypatch.delitem(sys.modules, "bots_there")
    mine, side = package("my_bots", monkeypatch, "bots"), controller_side()
    assert side.unresolved_tags(descriptor, by_path=True) == []
    assert side.domain(descriptor).tags[1] is mine.USER
    package("more_bots", monkeypatch, "bots")
    with pytest.raises(ConfigError, match="my_bots:USER"):
        controller_side().unresolved_tags(descriptor, by_path=True)


# One side's tags: by path, always the same object, and given ones before made ones; and what a domain is.


#: A forest: each tag's parent is one of those before it, or none.
FORESTS = st.lists(st.integers(-1, 6), min_size=1, max_size=7).map(
    lambda parents: tag_forest([min(parent, number - 1) for number, parent in enumerate(parents)])
)


def tag_forest(parents: list[int]) -> list[SecurityDomainTag]:
    tags: list[SecurityDomainTag] = []
    for number, parent in enumerate(parents):
        tags.append(SecurityDomainTag(f"t{number}", tags[parent] if parent >= 0 else None))
    return tags


@given(FORESTS)
def test_a_made_tag_is_made_once_and_equal_to_the_one_elsewhere(forest: list[SecurityDomainTag]) -> None:
    book = TagRegistry(SecurityDomainTag)
    made = [book.get(tag_path(tag)) for tag in reversed(forest)][::-1]
    assert made == forest
    assert all(book.get(tag_path(tag)) is made[number] for number, tag in enumerate(forest))
    parents = [tag.parent for tag in made if tag.parent is not None]
    assert all(any(parent is tag for tag in made) for parent in parents)


@given(FORESTS, st.data())
def test_a_scope_of_given_tags_includes_what_it_included_elsewhere(
    forest: list[SecurityDomainTag], data: st.DataObject
) -> None:
    here = tag_forest([forest.index(tag.parent) if tag.parent is not None else -1 for tag in forest])
    scope = frozenset(data.draw(st.sets(st.sampled_from(here))))
    book = TagRegistry(SecurityDomainTag, scope)
    for number, tag in enumerate(forest):
        assert scope_includes(scope, book.get(tag_path(tag))) == scope_includes(scope, here[number])


def test_a_given_tag_replaces_one_that_was_made_and_the_first_given_stays() -> None:
    book = TagRegistry(SecurityDomainTag)
    made = book.get(["user"])
    given_tag, later = SecurityDomainTag("user"), SecurityDomainTag("user")
    book.register([given_tag])
    assert book.get(["user"]) is given_tag is not made
    book.register([later])
    assert book.get(["user"]) is given_tag


def test_a_tag_that_is_given_brings_its_parents() -> None:
    root = SecurityDomainTag("root")
    leaf = SecurityDomainTag("leaf", SecurityDomainTag("branch", root))
    book = TagRegistry(SecurityDomainTag, [leaf])
    assert book.get(["root"]) is root
    assert book.get(["leaf", "branch", "root"]) is leaf
    assert book.get(["leaf"]) is not leaf


@given(FORESTS)
def test_combinations_are_every_scope_without_a_tag_beneath_another(forest: list[SecurityDomainTag]) -> None:
    domain = SecurityDomain(forest)
    every = itertools.chain.from_iterable(itertools.combinations(forest, size) for size in range(len(forest) + 1))
    antichains = {
        frozenset(tags)
        for tags in every
        if not any(one is not other and one.includes(other) for one in tags for other in tags)
    }
    found = domain.distinct_combinations()
    assert set(found) == antichains
    assert len(found) == len(antichains)


def test_a_domain_refuses_two_tags_of_a_name_and_a_parent_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="Two tags share a name: a"):
        SecurityDomain([SecurityDomainTag("a"), SecurityDomainTag("a")])
    with pytest.raises(ValueError, match="'a' lies in 'b', which is not in the domain"):
        SecurityDomain([SecurityDomainTag("a", SecurityDomainTag("b"))])


def test_an_empty_scope_includes_nothing_and_equal_tags_are_not_the_same() -> None:
    assert not scope_includes(frozenset(), SecurityDomainTag("a"))
    assert not SecurityDomainTag("a").includes(SecurityDomainTag("a"))
