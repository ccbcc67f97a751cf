"""The event channel, the scope filter and the trajectory beside superred's own, given the same words.

Only the differences that docs/agents.md names are allowed. Runs in superred's environment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from superred.core import persistence
from superred.core.channel import EventChannel as TheirChannel
from superred.core.middleware import compose, security_domain_filter, trajectory_recorder
from superred.core.types.trajectory import Trajectory as TheirTrajectory

import quintain
from quintain.controller.channel import EventChannel, event_channel
from quintain.controller.scope import answer_in_scope
from quintain.controller.trajectory import Trajectory
from quintain.target.type_registry import QUINTAIN_TYPES, TypeRegistry, superred_types
from support.target_placements import scripted_target_class
from support.thread_host import thread_host

#: A step of a script: its name, and whom or what it concerns.
Step = tuple[Any, ...]

THEIR_TYPES = superred_types()

BEGIN = datetime(2026, 1, 1)

EVENT_KINDS = ["Event", "ControllablePreCallEvent", "ControllablePostCallEvent"]

#: What an event is answered with; the last two are nobody's answer to it.
ANSWERS = ["ControllableInjection", "ControllableNoInjection", "EventResponse", "text", "another event's"]


class Poison(Exception):
    """What a channel is closed with."""


class Refusal(Exception):
    """What an envelope is rejected with."""


def make_event(types: TypeRegistry, kind: str, number: int, tag: Any, domain: Any = None) -> Any:
    """The event of this number, the same in both vocabularies."""
    fields: dict[str, Any] = {"event_id": f"event {number}", "timestamp": BEGIN + timedelta(seconds=number)}
    if kind == "ObservableEvent":
        content = {"number": number, "when": BEGIN, "odd": {1: (2, b"3")}}
        fields |= {"observable": types.module.Observable("screen", tag, "what is shown"), "content": content}
    elif kind != "Event":
        fields |= {"controllable": types.module.Controllable("question", tag, "what is asked"), "request": "Who is it?"}
    if kind == "ControllablePostCallEvent":
        fields["answer"] = "It is me."
    return types.events[kind](security_domain=tag if kind == "Event" else domain, **fields)


def make_answer(types: TypeRegistry, answer: str, event: Any) -> Any:
    """What this event is answered with."""
    if answer == "text":
        return "only a text"
    if answer == "another event's":
        event, answer = type(event)(**{**vars(event), "event_id": "another"}), answer_of_class(event)
    fields: dict[str, Any] = {"event": event}
    if answer != "EventResponse":
        fields["controllable"] = getattr(event, "controllable", None) or types.module.Controllable(
            "any", types.module.SecurityDomainTag("any")
        )
    if answer == "ControllableInjection":
        fields["value"] = "put in"
    return types.responses[answer](**fields)


def answer_of_class(event: Any) -> str:
    return "EventResponse" if type(event).__name__ == "Event" else "ControllableInjection"


# The channel.


@dataclass
class Side:
    """One channel, its senders and receivers, and what the loop said of forgotten errors."""

    types: TypeRegistry
    channel: Any
    senders: list[asyncio.Task[Any]] = field(default_factory=list)
    receivers: list[asyncio.Task[Any]] = field(default_factory=list)
    loop_errors: list[str] = field(default_factory=list)

    @property
    def envelopes(self) -> list[Any]:
        done = [task.result() for task in self.receivers if task.done()]
        return [each for each in done if each is not None]

    async def take(self, step: Step) -> Any:
        """Take one step of a script, and return what all have seen afterwards."""
        seen = self._take(*step)
        for _ in range(10):
            await asyncio.sleep(0)
        return seen, [outcome_of(task) for task in self.senders], [outcome_of(task) for task in self.receivers]

    def _take(self, what: str, *args: Any) -> str:
        loop = asyncio.get_running_loop()
        if what == "send":
            event = make_event(self.types, args[0], len(self.senders), self.types.module.SecurityDomainTag("user"))
            self.senders.append(loop.create_task(self.channel.send(event)))
        elif what == "receive":
            self.receivers.append(loop.create_task(self.channel.receive()))
        elif what == "close":
            self.channel.close()
        elif what == "set_error":
            self.channel.set_error(Poison())
        elif what == "cancel" and self.senders:
            self.senders[args[0] % len(self.senders)].cancel()
        elif what in {"respond", "reject"} and self.envelopes:
            envelope = self.envelopes[args[0] % len(self.envelopes)]
            try:
                if what == "respond":
                    envelope.respond(make_answer(self.types, args[1], envelope.event))
                else:
                    envelope.reject(Refusal())
            except Exception as error:
                return type(error).__name__
        return ""


def outcome_of(task: asyncio.Task[Any]) -> str:
    """What a sender or receiver has seen, in words."""
    if not task.done():
        return "waits"
    if task.cancelled():
        return "cancelled"
    if (error := task.exception()) is not None:
        return type(error).__name__
    result = task.result()
    answered = getattr(result, "event", None)
    return f"{type(result).__name__} {getattr(answered, 'event_id', '')} {getattr(result, 'value', '')}"


def play(types: TypeRegistry, make_channel: Callable[[], Any], script: Sequence[Step]) -> tuple[list[Any], list[str]]:
    """Take all steps with one side's classes; what was seen after each, and the loop's errors."""

    async def run() -> tuple[list[Any], list[str]]:
        side = Side(types, make_channel())
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: side.loop_errors.append(type(context.get("exception")).__name__)
        )
        seen = [await side.take(step) for step in script]
        for task in (*side.senders, *side.receivers):
            task.cancel()
        await asyncio.gather(*side.senders, *side.receivers, return_exceptions=True)
        return seen, side.loop_errors

    return asyncio.run(run())


@dataclass
class Comparison:
    """Follows a script on both sides; `allowed` is what they may differ in, by the list of the page."""

    script: Sequence[Step]
    #: The senders of which the two may think differently from now on.
    apart: set[int] = field(default_factory=set)
    is_closed: bool = False
    found: set[str] = field(default_factory=set)

    def compare(self) -> set[str]:
        """Compare all steps, and return the names of the differences that were found."""
        ours, our_errors = play(QUINTAIN_TYPES, EventChannel, self.script)
        theirs, their_errors = play(THEIR_TYPES, TheirChannel, self.script)
        assert our_errors == []
        assert set(their_errors) <= {"InvalidStateError"}
        if their_errors:
            assert any(step[0] == "cancel" for step in self.script)
            self.found.add("late answer")
        before: Any = ("", [], [])
        for step, own, other in zip(self.script, ours, theirs, strict=True):
            self._compare_step(step, before, own, other)
            if step[0] == "set_error" and self.apart and self.is_closed:
                # From here on one side still gives the events out that the other side has rejected.
                break
            self.is_closed |= step[0] in {"close", "set_error"}
            before = own
        return self.found

    def _compare_step(self, step: Step, before: Any, own: Any, other: Any) -> None:
        for index, (mine, their) in enumerate(zip(own[1], other[1], strict=True)):
            if mine != their and index not in self.apart:
                self.found.add(self._difference(step, mine, their))
                self.apart.add(index)
        if own[0] != other[0]:
            # An envelope that only one side has settled before, or an answer that only ours refuses.
            assert self.apart or step[2] in {"text", "another event's"}
        for mine, their in zip(own[2], other[2], strict=True):
            if mine != their:
                assert (mine.split()[0], their) == ("NoneType", "waits")
                assert self.is_closed or step[0] in {"close", "set_error"}
                self.found.add("receive after the end")

    def _difference(self, step: Step, mine: str, their: str) -> str:
        if step[0] == "respond" and step[2] == "another event's":
            assert (mine, "another" in their) == ("ValueError", True)
            return "answer to another event"
        if step[0] == "respond" and step[2] == "text":
            assert (mine, their.split(maxsplit=1)[0]) == ("TypeError", "str")
            return "no response at all"
        assert (step[0], mine, their) == ("set_error", "Poison", "waits"), step
        return "receiver that has ended"


def scripts() -> st.SearchStrategy[list[Step]]:
    index = st.integers(0, 5)
    return st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.sampled_from(EVENT_KINDS)),
            st.tuples(st.just("send"), st.sampled_from(EVENT_KINDS)),
            st.tuples(st.just("receive")),
            st.tuples(st.just("receive")),
            st.tuples(st.just("respond"), index, st.sampled_from(ANSWERS)),
            st.tuples(st.just("reject"), index),
            st.tuples(st.just("cancel"), index),
            st.tuples(st.sampled_from(["close", "set_error"])),
        ),
        max_size=25,
    )


@given(scripts())
def test_the_channel_does_what_superreds_does(script: list[Step]) -> None:
    Comparison(script).compare()


PRE = "ControllablePreCallEvent"


@pytest.mark.parametrize(
    ("difference", "script"),
    [
        ("answer to another event", [("send", PRE), ("receive",), ("respond", 0, "another event's")]),
        ("no response at all", [("send", "Event"), ("receive",), ("respond", 0, "text")]),
        ("late answer", [("send", PRE), ("receive",), ("cancel", 0), ("respond", 0, "ControllableInjection")]),
        ("receive after the end", [("close",), ("receive",), ("receive",)]),
        ("receiver that has ended", [("send", PRE), ("receive",), ("set_error",)]),
        ("receiver that has ended", [("send", PRE), ("receive",), ("close",), ("set_error",)]),
        ("receiver that has ended", [("send", PRE), ("close",), ("set_error",)]),
    ],
)
def test_each_difference_of_the_page_is_one(difference: str, script: list[Step]) -> None:
    assert difference in Comparison(script).compare()


@pytest.mark.parametrize("holds_an_envelope", [False, True])
async def test_where_superred_waits_for_ever_the_sender_is_told(holds_an_envelope: bool) -> None:
    async def their_receiver(channel: Any) -> None:
        if holds_an_envelope:
            await channel.receive()
            channel.set_error(Poison())

    theirs = TheirChannel()
    task = asyncio.create_task(their_receiver(theirs))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(
            theirs.send(make_event(THEIR_TYPES, PRE, 0, THEIR_TYPES.module.SecurityDomainTag("user"))), 0.2
        )
    await task

    async def receiver(channel: EventChannel) -> None:
        if holds_an_envelope:
            await channel.receive()
            raise Poison

    with pytest.raises(Poison if holds_an_envelope else RuntimeError):
        async with event_channel(receiver) as ours:
            await asyncio.wait_for(
                ours.send(make_event(QUINTAIN_TYPES, PRE, 0, QUINTAIN_TYPES.module.SecurityDomainTag("user"))), 5
            )


# The scope filter and the trajectory.


@dataclass(frozen=True)
class Run:
    """A run in words: the parents of its tags, what is in scope and what is seen, and its steps."""

    parents: list[int | None]
    scope: set[int]
    visible: set[int]
    steps: list[Step]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    count = draw(st.integers(1, 5))
    parents = [draw(st.none() | st.integers(0, number - 1)) if number else None for number in range(count)]
    tag = st.integers(0, count - 1)
    kinds = st.sampled_from([*EVENT_KINDS, "ObservableEvent"])
    # An event may have no tag at all, and one of its own that is not its controllable's.
    step = st.one_of(
        st.tuples(st.just("emit"), kinds, tag, st.none() | tag),
        st.tuples(st.just("send"), kinds, tag, st.none() | tag),
        st.tuples(st.just("untagged"), st.sampled_from(["emit", "send"])),
        st.tuples(st.sampled_from(["drain", "drain what is seen"])),
        st.tuples(st.just("close")),
    )
    return Run(parents, draw(st.sets(tag)), draw(st.sets(tag)), draw(st.lists(step, max_size=20)))


def play_run(types: TypeRegistry, run: Run, make: Callable[[Any, Any, Any], tuple[Any, Any]]) -> list[Any]:
    """What all see of a run with one side's classes, step by step."""
    tags: list[Any] = []
    for number, parent in enumerate(run.parents):
        tags.append(types.module.SecurityDomainTag(f"tag {number}", None if parent is None else tags[parent]))
    asked: list[str] = []

    async def answer(event: Any) -> Any:
        asked.append(event.event_id)
        kind = answer_of_class(event)
        return make_answer(types, "EventResponse" if type(event).__name__ == "ObservableEvent" else kind, event)

    trajectory, send = make(
        frozenset(tags[each] for each in run.scope), frozenset(tags[each] for each in run.visible), answer
    )

    async def take(number: int, what: str, *args: Any) -> Any:
        if what == "close":
            return trajectory.close()
        if what.startswith("drain"):
            view = trajectory if what == "drain" else trajectory.filtered
            return [in_words(item) for item in view.drain()]
        if what == "untagged":
            what, event = args[0], make_event(types, "Event", number, None)
        else:
            kind, tag, domain = args
            event = make_event(types, kind, number, tags[tag], None if domain is None else tags[domain])
        try:
            return trajectory.emit(event) if what == "emit" else in_words(await send(event))
        except (RuntimeError, ValueError) as error:
            return type(error).__name__

    async def take_all() -> list[Any]:
        seen = [await take(number, *step) for number, step in enumerate(run.steps)]
        views = (trajectory, trajectory.filtered)
        return [*seen, asked, *([in_words(item) for item in view.snapshot()] for view in views), to_fields(trajectory)]

    return asyncio.run(take_all())


def in_words(item: Any) -> str:
    event = getattr(item, "event", item)
    return f"{type(item).__name__} {event.event_id} {event.security_domain.name} {getattr(item, 'value', '')}"


def to_fields(trajectory: Any) -> list[dict[str, Any]]:
    """A trajectory as JSON has it, without what superred's files do not say: the event of a response."""
    if isinstance(trajectory, Trajectory):
        items: list[dict[str, Any]] = json.loads(trajectory.to_json())
        for item in items:
            assert item["event_id"] if item["kind"] == "event" else item.pop("event_id")
        return items
    serialized = persistence._serialize_trajectory(trajectory)
    result: list[dict[str, Any]] = json.loads(json.dumps(serialized, default=persistence._json_fallback))
    return result


def ours(scope: Any, visible: Any, answer: Any) -> tuple[Any, Any]:
    trajectory = Trajectory(filtered_scope=visible)
    return trajectory, trajectory.recording(answer_in_scope(answer, scope))


def theirs(scope: Any, visible: Any, answer: Any) -> tuple[Any, Any]:
    trajectory = TheirTrajectory(filtered_scope=visible)
    return trajectory, compose(trajectory_recorder(trajectory), security_domain_filter(scope))(answer)


@given(runs())
def test_the_scope_filter_and_the_trajectory_do_what_superreds_do(run: Run) -> None:
    assert play_run(QUINTAIN_TYPES, run, ours) == play_run(THEIR_TYPES, run, theirs)


# The lease.


async def test_a_target_written_for_superred_is_driven_without_it(broker_url: str) -> None:
    async def script(target: Any, emit: Any, send: Any) -> None:
        emit(target.observation_event((await send(target.request_event("hello"))).value))

    async def inject(event: Any) -> quintain.EventResponse:
        return quintain.ControllableInjection(event=event, controllable=event.controllable, value="put in")

    with thread_host(broker_url, slots=1) as host:
        host.serve(lambda: scripted_target_class("superred")(script))
        async with quintain.lease(host.name, scope="user", url=broker_url) as target:
            items = (await target.run(on_event=inject)).snapshot()
    assert [type(item) for item in items] == [
        quintain.ControllablePreCallEvent,
        quintain.ControllableInjection,
        quintain.ObservableEvent,
    ]
