"""Whatever a target says comes out on the other side as it went in: every type of the vocabulary, any content."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import target as ours
from quintain.contracts import remote_target as wire
from quintain.contracts.values import replace_surrogates
from quintain.target.codec import Codec, decode_value, encode_value, write_event, write_response
from quintain.target.type_registry import QUINTAIN_TYPES, TagRegistry, to_json_text

ROOT = ours.SecurityDomainTag("root")
USER = ours.SecurityDomainTag("user", ROOT)
TOOLS = ours.SecurityDomainTag("tools", ROOT)
NOW = datetime(2026, 1, 2, 3, 4, 5)

#: Any text, halves of characters too: those are replaced.
TEXT = st.text(st.characters(codec=None), max_size=30)
TAG = st.sampled_from([ROOT, USER, TOOLS])
CONTROLLABLE = st.builds(
    ours.Controllable,
    TEXT.map(replace_surrogates),
    TAG,
    TEXT.map(replace_surrogates),
    st.sampled_from(["text", "json"]),
)
OBSERVABLE = st.builds(
    ours.Observable, TEXT.map(replace_surrogates), TAG, TEXT.map(replace_surrogates), st.sampled_from(["text", "code"])
)

#: What JSON has and keeps.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)

#: What JSON has not: superred's files have a text for each.
ANY = JSON | st.datetimes() | st.binary(max_size=10) | st.frozensets(st.integers()) | st.tuples(JSON, JSON)

DOMAIN = st.none() | TAG
EVENT = st.one_of(
    st.builds(ours.Event, event_id=TEXT.map(replace_surrogates), security_domain=TAG),
    st.builds(ours.ObservableEvent, observable=OBSERVABLE, content=ANY, security_domain=DOMAIN),
    st.builds(
        ours.ControllablePreCallEvent,
        controllable=CONTROLLABLE,
        request=TEXT.map(replace_surrogates),
        security_domain=DOMAIN,
    ),
    st.builds(
        ours.ControllablePostCallEvent,
        controllable=CONTROLLABLE,
        request=TEXT.map(replace_surrogates),
        answer=TEXT.map(replace_surrogates),
        security_domain=DOMAIN,
    ),
)


def over_the_wire(message: Any) -> Any:
    """A message after the wire."""
    return type(message).from_wire(message.to_wire())


def codec() -> Codec:
    """A side that holds the tags above."""
    return Codec(QUINTAIN_TYPES, TagRegistry(QUINTAIN_TYPES.module.SecurityDomainTag, [USER, TOOLS]))


@given(EVENT)
def test_an_event_comes_out_as_it_went_in(event: Any) -> None:
    said = over_the_wire(write_event(event))
    assert said.at == pytest.approx(event.timestamp.timestamp())
    out = codec().event(said, timestamp=NOW)
    expected = dataclasses.replace(event, timestamp=NOW)
    if isinstance(event, ours.ObservableEvent):
        assert sorted(to_json_text(out.content)) == sorted(to_json_text(event.content))
        expected = dataclasses.replace(expected, content=out.content)
    assert out == expected
    assert out.security_domain is event.security_domain


@given(CONTROLLABLE, TEXT.map(replace_surrogates))
def test_a_response_carries_its_sides_own_objects(controllable: Any, value: str) -> None:
    event = ours.ControllablePreCallEvent(controllable=controllable, request="q")
    there = codec().event(over_the_wire(write_event(event)), timestamp=NOW)
    for response in (
        ours.ControllableInjection(event=there, controllable=there.controllable, value=value),
        ours.ControllableNoInjection(event=there, controllable=there.controllable),
        ours.EventResponse(event=there),
    ):
        back = codec().response(over_the_wire(write_response(response)), event)
        assert type(back) is type(response)
        assert back.event is event
        assert getattr(back, "controllable", controllable) is controllable
        assert getattr(back, "value", value) == value


def test_a_response_that_names_another_tag_of_the_target_has_the_targets_own_object() -> None:
    target_side = Codec(QUINTAIN_TYPES)
    target_side.describe(ExposingTarget())
    event = ours.ControllablePreCallEvent(controllable=ours.Controllable("a", USER), request="q")
    elsewhere = ours.ControllableNoInjection(event=event, controllable=ours.Controllable("b", TOOLS))
    back = target_side.response(over_the_wire(write_response(elsewhere)), event)
    assert back.controllable.security_domain is TOOLS


@pytest.mark.parametrize("value", [5, None, ["a"], True])
def test_what_ought_to_be_text_and_is_not_crosses_as_it_is(value: Any) -> None:
    controllable = ours.Controllable("a", USER)
    event = ours.ControllablePreCallEvent(controllable=controllable, request=value)
    assert codec().event(over_the_wire(write_event(event)), timestamp=NOW).request == value
    response = ours.ControllableInjection(event=event, controllable=controllable, value=value)
    assert codec().response(over_the_wire(write_response(response)), event).value == value


@given(ANY)
def test_content_comes_out_as_superreds_files_have_it(content: Any) -> None:
    def fallback(value: Any) -> str:  # superred.core.output: isoformat for a time, else repr
        return value.isoformat() if isinstance(value, datetime) else repr(value)

    out = json.dumps(decoded(content), default=fallback)
    # The items of a set have no order.
    assert sorted(out) == sorted(json.dumps(content, default=fallback))


def decoded(value: Any) -> Any:
    """A value after the wire, where a tag is `USER`."""
    return decode_value(encode_value(value), lambda path: {"user": USER, "tools": TOOLS}[path[0]])


@pytest.mark.parametrize(
    "value",
    [
        b"\x00bytes",
        bytearray(b"b"),
        {1, "a"},
        frozenset({(1, 2)}),
        (1, [2, (3,)]),
        datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime(2026, 1, 2, tzinfo=UTC),
        date(2026, 1, 2),
        time(3, 4),
        timedelta(days=-1, microseconds=5),
        Decimal("1.50"),
        UUID(int=5),
        {1: {None: b"x"}, (1, 2): {3}},
        {"$type": "set", "value": [1]},
        {"$type": {"$type": 5}},
        2**200,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_arrives_as_what_it_was(value: Any) -> None:
    assert decoded(value) == value
    assert type(decoded(value)) is type(value)
    assert decoded([{"in": value}]) == [{"in": value}]


def test_a_tag_in_a_value_is_this_sides_own() -> None:
    assert decoded({"of": (TOOLS,)})["of"][0] is TOOLS


@pytest.mark.parametrize("text", ['{"$type": "eval"}', '{"$type": "bytes", "value": "%"}', '{"$type": ["set"]}'])
def test_a_value_of_an_unknown_type_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode_value(text, lambda path: USER)


def test_content_that_nothing_can_write_is_its_repr() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert decoded(loop) == "[[...]]"


def test_content_whose_repr_fails_is_its_class() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    assert "Hostile" in str(decoded([Hostile()]))


@given(st.text(st.characters(codec=None)))
def test_text_without_halves_of_characters_can_be_carried(text: str) -> None:
    carried = replace_surrogates(text)
    carried.encode()
    assert carried == text or any("\ud800" <= each <= "\udfff" for each in text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened(ours.EventResponse):
    by: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knock(ours.Event):
    response_types = (Opened,)
    times: int
    silent: dict[str, bool] = dataclasses.field(default_factory=dict)


def test_a_class_of_somebodys_own_crosses_with_all_its_fields() -> None:
    mine = Codec(QUINTAIN_TYPES.with_classes([Knock]), TagRegistry(QUINTAIN_TYPES.module.SecurityDomainTag, [USER]))
    knock = Knock(times=3, silent={"yes": True}, security_domain=USER)
    assert mine.event(over_the_wire(write_event(knock)), timestamp=knock.timestamp) == knock
    # The event itself says which classes answer it.
    assert codec().response(over_the_wire(write_response(Opened(event=knock, by="anne"))), knock).by == "anne"


def test_a_class_that_nobody_registered_is_refused_by_name() -> None:
    knock = write_event(Knock(times=3, security_domain=USER))
    with pytest.raises(TypeError, match="'Knock' is not registered here: pass it .* in events="):
        codec().event(knock, timestamp=NOW)
    event = ours.Event(security_domain=USER)
    with pytest.raises(TypeError, match=r"'Opened' is unknown to the target: name it in Event\.response_types"):
        codec().response(wire.WireResponse(kind="Opened"), event)
    with pytest.raises(TypeError, match="int is neither an Event nor an EventResponse"):
        QUINTAIN_TYPES.with_classes([int])


class ExposingTarget(ours.Target):
    """A target that only exposes things."""

    security_domain = ours.SecurityDomain([ROOT, USER, TOOLS])  # type: ignore[assignment]

    @property
    def config_specs(self) -> list[ours.ConfigSpec]:
        return [ours.ConfigSpec("slot", USER, "a slot")]

    @property
    def query_specs(self) -> list[ours.QuerySpec]:
        return [ours.QuerySpec("ask", "a question", [ours.QueryParam("of", "whom")])]

    def set_config(self, name: str, value: str) -> None: ...
    def query(self, name: str, **params: str) -> str:
        return ""

    def get_controllables(self) -> list[ours.Controllable]:
        return [ours.Controllable("in", USER, "here", "json")]

    def get_observables(self) -> list[ours.ObservableValue]:
        return [ours.ObservableValue(ours.Observable("out", TOOLS), {"a": (1,)})]

    async def run(self, emit: Any, send_event: Any) -> None: ...
    async def reset_ephemeral_state(self) -> None: ...
    async def teardown(self) -> None: ...


def test_what_a_target_exposes_comes_out_as_it_is() -> None:
    target, side = ExposingTarget(), codec()
    said = over_the_wire(side.describe(target))
    assert said.target_class == "ExposingTarget"
    assert side.config_specs(said) == target.config_specs
    assert side.query_specs(said) == target.query_specs
    assert side.domain(said).tags == (ROOT, USER, TOOLS)
    assert all(one is other for one, other in zip(side.domain(said).tags, (ROOT, USER, TOOLS), strict=True))
    assert [side.controllable(each) for each in said.controllables] == target.get_controllables()
    assert side.observables(said) == [ours.ObservableValue(ours.Observable("out", TOOLS), {"a": (1,)})]
