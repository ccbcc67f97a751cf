"""JSON pointers, and the values of a call in a template."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.config.http_template import fill_template, fill_url, find

#: The document and the pointers of section 5 of RFC 6901.
DOCUMENT = {
    "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8,
}  # fmt: skip
POINTERS = {
    "": DOCUMENT, "/foo": ["bar", "baz"], "/foo/0": "bar", "/": 0, "/a~1b": 1, "/c%d": 2, "/e^f": 3, "/g|h": 4,
    "/i\\j": 5, '/k"l': 6, "/ ": 7, "/m~0n": 8,
}  # fmt: skip


@pytest.mark.parametrize(("pointer", "found"), POINTERS.items())
def test_a_pointer_finds_what_the_rfc_says(pointer: str, found: object) -> None:
    assert find(DOCUMENT, pointer) == found


@pytest.mark.parametrize("pointer", ["/foo/2", "/foo/-", "/foo/00", "/foo/-3", "/foo/x", "/foo/0/0", "/bar", "/a/b"])
def test_a_pointer_into_nothing_finds_nothing(pointer: str) -> None:
    assert find(DOCUMENT, pointer) is None


@given(value=st.text())
def test_a_value_is_never_read_as_a_template(value: str) -> None:
    template = {"a": "{{ prompt }}", "b": ["x {{ prompt }}{{session}} y"]}
    values = {"prompt": value, "session": "{{ prompt }}"}
    assert fill_template(template, values) == {"a": value, "b": [f"x {value}{{{{ prompt }}}} y"]}


@given(value=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_value_stays_within_its_place_of_a_url(value: str) -> None:
    if not value.strip("."):
        with pytest.raises(ValueError, match="session"):
            fill_url("/a/{{ session }}/b", {"session": value})
        return
    filled = fill_url("/a/{{ session }}/b", {"session": value})
    assert filled.count("/") == 3
    assert not set(filled) & set("?#\\ \r\n\0")
