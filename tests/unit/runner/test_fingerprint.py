"""Knowing names again: which are told apart, and that a large set forgets none."""

from __future__ import annotations

from quintain_runner.results import fingerprint as module
from quintain_runner.results.fingerprint import FingerprintSet, fingerprint


def test_parts_cannot_be_shifted_into_one_another() -> None:
    names = [fingerprint("a", "b", 1), fingerprint("ab", "", 1), fingerprint("a", "b1"), fingerprint("a", "b", "1")]
    assert len({*names, fingerprint("a"), fingerprint("a", "b", 2)}) == 6
    assert fingerprint("a", "b", 1) == names[0]


def test_text_that_is_no_unicode_has_a_fingerprint_too() -> None:
    assert fingerprint("half \ud800") != fingerprint("half \ud801")


def test_a_set_knows_what_it_was_given_and_nothing_else() -> None:
    count = 3 * module._MIN_MERGE_SIZE
    held = FingerprintSet()
    for number in range(count):
        held.add(fingerprint("case", number))
        held.add(fingerprint("case", 0))
    assert len(held) == count
    assert all(fingerprint("case", number) in held for number in range(count))
    assert not any(fingerprint("other", number) in held for number in range(1000))


def test_an_empty_set_holds_nothing() -> None:
    assert (len(FingerprintSet()), fingerprint("a") in FingerprintSet()) == (0, False)
