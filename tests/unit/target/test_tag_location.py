"""Tags are the objects of modules imported on this side: found by module and attribute, never by name alone."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from quintain.contracts.remote_target import TargetDescriptor
from quintain.errors import ConfigError
from quintain.target.codec import Codec
from quintain.target.type_registry import QUINTAIN_TYPES, TagRegistry
from quintain.target.types import SecurityDomainTag
from support.target_placements import ScriptedTarget


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
