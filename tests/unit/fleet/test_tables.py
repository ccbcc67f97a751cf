"""Values in words, as the Fleet page and `quintain status` show them."""

from __future__ import annotations

from quintain.fleet.tables import amount, duration, errors


def test_values_in_words() -> None:
    assert [duration(value) for value in (None, 12.4, 1500, 90_000)] == ["-", "12 ms", "1.5 s", "1.5 min"]
    assert [amount(value) for value in (None, 9999, 12_000, 2_500_000)] == ["-", "9999", "12.0 k", "2.5 M"]
    assert errors({"a": 1, "b": 3, "c": 2, "d": 1, "e": 1}) == "3 × b, 2 × c, 1 × a, 2 others"
