"""A target's objects ⇄ messages, in either vocabulary. Pure.

An event keeps its id, its time and its own domain; a decoded tag is the one its side holds (`tags`). Contents come
out as superred's files would have them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import Any

from quintain.contracts import hosted as wire
from quintain.contracts.text import whole
from quintain.target.tags import TagBook, path_of
from quintain.target.text import from_json_text, to_json_text
from quintain.target.vocabulary import Vocabulary

#: The fields of events and responses that have a place of their own on the wire.
_TEXTS = frozenset({"request", "answer", "value"})
_OWN = _TEXTS | {"event_id", "timestamp", "security_domain", "event", "controllable", "observable", "content"}


class Codec:
    """One side's translation: its vocabulary, and the tags it holds."""

    def __init__(self, vocabulary: Vocabulary, tags: TagBook | None = None) -> None:
        self.vocabulary = vocabulary
        self.tags = TagBook(vocabulary.tag) if tags is None else tags

    # What a target exposes.

    def describe(self, target: Any) -> wire.Descriptor:
        """Everything a target exposes, as it is configured now."""
        return wire.Descriptor(
            target_class=type(target).__name__,
            tags=[path_of(tag) for tag in tags_of(target.security_domain)],
            config_specs=[
                wire.WireConfigSpec(name=spec.name, domain=path_of(spec.security_domain), description=spec.description)
                for spec in target.config_specs
            ],
            query_specs=[
                wire.WireQuerySpec(
                    name=spec.name,
                    description=spec.description,
                    params=[wire.WireParam(name=param.name, description=param.description) for param in spec.params],
                )
                for spec in target.query_specs
            ],
            controllables=[write_controllable(each) for each in target.get_controllables()],
            observables=[
                wire.WireObservableValue(
                    observable=write_observable(value.observable), content=to_json_text(value.content)
                )
                for value in target.get_observables()
            ],
        )

    def domain(self, said: wire.Descriptor) -> Any:
        """The security domain of a descriptor, in this side's own tags."""
        return self.vocabulary.domain([self.tags.tag(path) for path in said.tags])

    def config_specs(self, said: wire.Descriptor) -> list[Any]:
        """The slots of a descriptor."""
        make = self.vocabulary.config_spec
        return [make(spec.name, self.tags.tag(spec.domain), spec.description) for spec in said.config_specs]

    def query_specs(self, said: wire.Descriptor) -> list[Any]:
        """The questions of a descriptor."""
        param, make = self.vocabulary.query_param, self.vocabulary.query_spec
        return [
            make(spec.name, spec.description, [param(each.name, each.description) for each in spec.params])
            for spec in said.query_specs
        ]

    def observables(self, said: wire.Descriptor) -> list[Any]:
        """What is to be seen, of a descriptor."""
        make = self.vocabulary.observable_value
        return [make(self.observable(each.observable), from_json_text(each.content)) for each in said.observables]

    def controllable(self, said: wire.WireControllable) -> Any:
        """A controllable."""
        domain = self.tags.tag(said.domain)
        return self.vocabulary.controllable(said.name, domain, whole(said.description), said.value_type)

    def observable(self, said: wire.WireObservable) -> Any:
        """An observable."""
        return self.vocabulary.observable(said.name, self.tags.tag(said.domain), said.description, said.observable_type)

    # What is said in a run.

    def event(self, said: wire.WireEvent, *, timestamp: datetime) -> Any:
        """The event, under this side's time. Raises `TypeError` for a class nobody registered here."""
        kind = self.vocabulary.events.get(said.kind)
        if kind is None:
            raise TypeError(f"Event type {said.kind!r} is not registered here: pass it to remote_factory(events=[…])")
        fields: dict[str, Any] = {
            "event_id": said.event_id,
            "timestamp": timestamp,
            "security_domain": None if said.domain is None else self.tags.tag(said.domain),
            "controllable": None if said.controllable is None else self.controllable(said.controllable),
            "observable": None if said.observable is None else self.observable(said.observable),
            "request": said.request,
            "answer": said.answer,
            "content": None if said.content is None else from_json_text(said.content),
            **_read_extra(said.extra),
        }
        return kind(**_wanted(kind, fields))

    def response(self, said: wire.WireResponse, event: Any) -> Any:
        """The response to this very event, with its very controllable.

        Raises `TypeError` for a class that is neither known here nor among the event's own ``response_types``.
        """
        own_kinds = {each.__name__: each for each in type(event).response_types}
        kind = own_kinds.get(said.kind) or self.vocabulary.responses.get(said.kind)
        if kind is None:
            raise TypeError(
                f"Response type {said.kind!r} is unknown to the target: "
                f"name it in {type(event).__name__}.response_types"
            )
        named = None if said.controllable is None else self.controllable(said.controllable)
        own = getattr(event, "controllable", None)
        fields = {
            "event": event,
            "controllable": own if named == own else named,
            "value": said.value,
            **_read_extra(said.extra),
        }
        return kind(**_wanted(kind, fields))


def write_controllable(each: Any) -> wire.WireControllable:
    """A controllable as it travels."""
    return wire.WireControllable(
        name=each.name,
        domain=path_of(each.security_domain),
        description=whole(each.description),
        value_type=each.value_type,
    )


def write_observable(each: Any) -> wire.WireObservable:
    """An observable as it travels."""
    return wire.WireObservable(
        name=each.name,
        domain=path_of(each.security_domain),
        description=whole(each.description),
        observable_type=each.observable_type,
    )


def write_event(event: Any) -> wire.WireEvent:
    """An event as it travels: a snapshot, whatever becomes of its content later."""
    domain = event.security_domain
    return wire.WireEvent(
        kind=type(event).__name__,
        event_id=event.event_id,
        at=event.timestamp.timestamp(),
        domain=None if domain is None else path_of(domain),
        controllable=_if_there(event, "controllable", write_controllable),
        observable=_if_there(event, "observable", write_observable),
        request=_text(event, "request"),
        answer=_text(event, "answer"),
        content=to_json_text(event.content) if hasattr(event, "content") else None,
        extra=_write_extra(event),
    )


def write_response(response: Any) -> wire.WireResponse:
    """A response as it travels; its event is known by the number it was sent under.

    Raises `TypeError` for what is no response.
    """
    if not dataclasses.is_dataclass(response) or not hasattr(response, "event"):
        raise TypeError(f"An event is answered with an EventResponse, not with a {type(response).__name__}")
    return wire.WireResponse(
        kind=type(response).__name__,
        controllable=_if_there(response, "controllable", write_controllable),
        value=_text(response, "value"),
        extra=_write_extra(response),
    )


def _if_there(owner: Any, name: str, write: Callable[[Any], Any]) -> Any:
    value = getattr(owner, name, None)
    return None if value is None else write(value)


def _text(owner: Any, name: str) -> str | None:
    value = getattr(owner, name, None)
    return whole(value) if isinstance(value, str) else None


def _write_extra(owner: Any) -> dict[str, str] | None:
    """The further fields; and those that ought to be texts and are not, which nobody checks in process either."""
    own = {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner)}
    further = {
        name: value
        for name, value in own.items()
        if name not in _OWN or (name in _TEXTS and value is not None and not isinstance(value, str))
    }
    return {name: to_json_text(value) for name, value in further.items()} or None


def _read_extra(extra: dict[str, str] | None) -> dict[str, object]:
    return {name: from_json_text(text) for name, text in (extra or {}).items()}


def _wanted(kind: Any, fields: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    return {name: value for name, value in fields.items() if name in names}


def tags_of(domain: Any) -> list[Any]:
    """A domain's tags in the order given: superred's keeps them in a private map, and shows the roots alone."""
    return list(domain.tags) if hasattr(domain, "tags") else list(vars(domain)["_tags"].values())
