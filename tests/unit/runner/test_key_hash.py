"""Knowing names again: which are told apart, and that a large set forgets none."""

from __future__ import annotations

from quintain_runner.results import store as module
from quintain_runner.results.store import KeyHashSet, key_hash


def test_parts_cannot_be_shifted_into_one_another() -> None:
    names = [key_hash("a", "b", 1), key_hash("ab", "", 1), key_hash("a", "b1"), key_hash("a", "b", "1")]
    assert len({*names, key_hash("a"), key_hash("a", "b", 2)}) == 6
    assert key_hash("a", "b", 1) == names[0]


def test_text_that_is_no_unicode_has_a_hash_too() -> None:
    assert key_hash("half \ud800") != key_hash("half \ud801")


def test_a_set_knows_what_it_was_given_and_nothing_else() -> None:
    count = 3 * module._MIN_MERGE_SIZE
    held = KeyHashSet()
    for number in range(count):
        held.add(key_hash("case", number))
        held.add(key_hash("case", 0))
    assert len(held) == count
    assert all(key_hash("case", number) in held for number in range(count))
    assert not any(key_hash("other", number) in held for number in range(1000))


def test_an_empty_set_holds_nothing() -> None:
    assert (len(KeyHashSet()), key_hash("a") in KeyHashSet()) == (0, False)
