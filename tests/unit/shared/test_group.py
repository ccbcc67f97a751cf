"""The body of a group: what it carries arrives unchanged, and whatever is no group is refused by name."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.contracts.group import (
    MAX_GROUP_BYTES,
    MAX_GROUP_ITEMS,
    GroupItem,
    count_fitting,
    decode_group,
    encode_group,
    encode_item,
)
from quintain.errors import BadRequest, PayloadTooLarge

HEADER_VALUES = st.one_of(st.text(max_size=20), st.integers(-(2**53), 2**53), st.booleans())
ITEMS = st.builds(
    GroupItem,
    correlation_id=st.text(min_size=1, max_size=40),
    body=st.binary(max_size=300),
    headers=st.dictionaries(st.text(max_size=20), HEADER_VALUES, max_size=4),
    type=st.sampled_from(["", "result", "fault"]),
    problem=st.just(""),
)
GROUPS = st.lists(ITEMS, min_size=1, max_size=MAX_GROUP_ITEMS)


@given(GROUPS)
def test_items_arrive_as_they_were_sent(items: list[GroupItem]) -> None:
    assert decode_group(encode_group(items)) == items


@given(GROUPS, st.data())
def test_a_cut_group_is_refused_or_a_shorter_one(items: list[GroupItem], data: st.DataObject) -> None:
    whole = encode_group(items)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        decoded = decode_group(cut)
    except BadRequest:
        return
    assert decoded == items[: len(decoded)]
    assert encode_group(decoded) == cut


@given(st.binary(max_size=2000))
def test_any_bytes_are_items_or_a_fault(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert encode_group(decode_group(body))


def raw_item(head: bytes, body: bytes = b"{}") -> bytes:
    return struct.pack(">II", len(head), len(body)) + head + body


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"{", b"[]", b'"x"', b"{}", b'{"correlationId":""}', b'{"correlationId":7}'),
        b'{"correlationId":"a","headers":[]}',
        b'{"correlationId":"a","type":1}',
        b'{"correlationId":"a","session":"of another"}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_head_that_names_no_item_refuses_the_group(head: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_group(raw_item(b'{"correlationId":"first"}') + raw_item(head))


def test_one_call_may_be_answered_twice_in_one_group() -> None:
    twice = [GroupItem("a", b"1", type="result"), GroupItem("a", b"1", type="result")]
    assert decode_group(encode_group(twice)) == twice


def test_a_group_has_no_more_items_and_bytes_than_allowed() -> None:
    items = [GroupItem(str(number), b"") for number in range(MAX_GROUP_ITEMS + 1)]
    assert len(decode_group(encode_group(items[:-1]))) == MAX_GROUP_ITEMS
    with pytest.raises(PayloadTooLarge):
        decode_group(encode_group(items))
    with pytest.raises(PayloadTooLarge):
        decode_group(encode_group([GroupItem("a", bytes(MAX_GROUP_BYTES))]))
    with pytest.raises(BadRequest):
        decode_group(b"")


@pytest.mark.parametrize(
    ("item", "read_as"),
    [
        (GroupItem("a\ud800", b"x"), GroupItem("a?", b"x")),
        (GroupItem("a" * 256, b"x"), GroupItem("a" * 255, b"x")),
        (GroupItem("ü" * 128, b"x"), GroupItem("ü" * 127, b"x")),
        (GroupItem("a", b"x", {"one": "\udfff", "two": "\U0001f4a5"}), GroupItem("a", b"x", {"two": "\U0001f4a5"})),
        (GroupItem("a", b"x", {"one": 2**63, "two": -(2**63)}), GroupItem("a", b"x", {"two": -(2**63)})),
    ],
    ids=["half a surrogate pair", "256 bytes", "256 bytes of 128 characters", "a header's half", "a header's 65 bits"],
)
def test_what_no_message_of_amqp_could_carry_is_the_problem_of_its_item(item: GroupItem, read_as: GroupItem) -> None:
    neighbour = GroupItem("n", b"y", {"one": 2**63 - 1})
    [broken, whole] = decode_group(encode_group([item, neighbour]))
    assert (broken._replace(problem=""), whole) == (read_as, neighbour)
    assert broken.problem


@given(GROUPS, st.integers(0, 3))
def test_as_many_items_go_into_a_group_as_can_be_read_from_it(items: list[GroupItem], times: int) -> None:
    wide = [item._replace(correlation_id=item.correlation_id * 10**times) for item in items]
    count = count_fitting(len(encode_item(item)) for item in wide)
    sizes = [len(encode_item(item)) for item in wide]
    assert count == 1 or sum(sizes[:count]) <= MAX_GROUP_BYTES
    assert count == len(items) or sum(sizes[: count + 1]) > MAX_GROUP_BYTES
