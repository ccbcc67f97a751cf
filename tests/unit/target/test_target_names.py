"""The interface and its types are at the package's root, and they are the very same classes."""

from __future__ import annotations

import pytest

import quintain
from quintain import target

#: Names for the shape of a function, and of a slot: they say nothing of themselves, and stay where they are explained.
NO_TYPES = {"EventHandler", "EventResponseHandler", "SESSION_SLOT"}


@pytest.mark.parametrize("name", sorted(set(target.__all__) - NO_TYPES))
def test_a_type_of_the_interface_is_at_the_root(name: str) -> None:
    assert getattr(quintain, name) is getattr(target, name)
    assert name in quintain.__all__
