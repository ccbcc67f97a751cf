"""One run's messages over a channel that loses, repeats and reorders: everything arrives once, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quintain.target.interface import Inbox, Outbox

#: What the channel does with each message it is given, in turn.
FATES = st.lists(st.sampled_from(["carry", "lose", "twice", "late"]), max_size=60)


@given(
    count=st.integers(0, 40),
    fates=FATES,
    batch=st.integers(1, 7),
    heard_lost=st.lists(st.booleans(), max_size=40),
    order=st.randoms(use_true_random=False),
)
def test_everything_arrives_once_and_in_order_whatever_the_channel_does(
    count: int, fates: list[str], batch: int, heard_lost: list[bool], order: object
) -> None:
    outbox: Outbox[int] = Outbox()
    inbox: Inbox[int] = Inbox()
    numbers = [outbox.put(item) for item in range(count)]
    arrived: list[int] = []
    late: list[tuple[int, int]] = []

    def receive(messages: list[tuple[int, int]]) -> None:
        order.shuffle(messages)  # type: ignore[attr-defined]
        for number, item in messages:
            arrived.extend(inbox.put(number, item))

    for _ in range(200):
        if inbox.last_in_order == count:
            break
        carried: list[tuple[int, int]] = []
        while sent := outbox.take(batch):
            for message in sent:
                fate = fates.pop() if fates else "carry"
                carried += [message] * {"carry": 1, "twice": 2}.get(fate, 0)
                late += [message] * (fate == "late")
        receive(carried)
        # How far it has come may be lost too; then everything goes again.
        if not (heard_lost.pop() if heard_lost else False):
            outbox.acknowledge(inbox.last_in_order)
        outbox.requeue_unacknowledged()
    receive(late)
    assert numbers == list(range(1, count + 1))
    assert arrived == list(range(count))
    assert not inbox.is_missing(outbox.last_number)
    outbox.acknowledge(inbox.last_in_order)
    assert outbox.unacknowledged_count == 0


@given(st.integers(0, 30), st.integers(0, 40))
def test_what_was_heard_is_not_sent_again(count: int, heard: int) -> None:
    outbox: Outbox[int] = Outbox()
    for item in range(count):
        outbox.put(item)
    outbox.take(count)
    assert not outbox.has_unsent
    outbox.acknowledge(heard)
    outbox.requeue_unacknowledged()
    assert [item for _, item in outbox.take(100)] == list(range(min(heard, count), count))


def test_what_is_sent_again_goes_before_what_is_new() -> None:
    outbox: Outbox[str] = Outbox()
    outbox.put("old")
    outbox.take(1)
    outbox.put("new")
    outbox.requeue_unacknowledged()
    assert outbox.take(5) == [(1, "old"), (2, "new")]


def test_an_inbox_waits_for_a_gap_and_says_so() -> None:
    inbox: Inbox[str] = Inbox()
    assert inbox.put(2, "b") == []
    assert inbox.is_missing(2)
    assert inbox.put(1, "a") == ["a", "b"]
    assert inbox.put(1, "a") == []
    assert not inbox.is_missing(2)
