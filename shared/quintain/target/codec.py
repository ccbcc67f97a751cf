"""Converts between a target's objects (quintain's or superred's) and wire messages. No I/O.

An event keeps its id, time and security domain; a decoded tag is the object that this side has registered.

A value of another type than JSON's is an object with the key ``$type``. Objects of unknown classes arrive as their
``repr``, as superred writes them to its files. Nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from quintain.contracts import remote_target as wire
from quintain.contracts.remote_target import TagPath
from quintain.contracts.values import replace_surrogates
from quintain.errors import ConfigError
from quintain.target.type_registry import (
    Tag,
    TagRegistry,
    TypeRegistry,
    find_tag,
    find_tags_by_path,
    locate_tags,
    safe_str,
    tag_path,
)

#: The key that marks an encoded value.
TYPE_KEY: Final = "$type"

#: The types that JSON has, by exact class.
_JSON_TYPES: Final = frozenset({str, int, float, bool, type(None)})

_COLLECTIONS: Final[dict[str, Callable[[list[Any]], object]]] = {"tuple": tuple, "set": set, "frozenset": frozenset}

#: Types written as one string: how each is written and read.
_TEXTUAL: Final[dict[type, tuple[Callable[[Any], str], Callable[[str], object]]]] = {
    bytes: (lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)),
    bytearray: (
        lambda value: base64.b64encode(value).decode(),
        lambda text: bytearray(base64.b64decode(text, validate=True)),
    ),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    timedelta: (
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: timedelta(*map(int, text.split())),
    ),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
}
_TEXTUAL_BY_NAME: Final = {cls.__name__: read for cls, (_, read) in _TEXTUAL.items()}


def encode_value(value: object) -> str:
    """Return any value as ASCII JSON text. Never raises: a value that contains itself becomes its repr."""
    try:
        return json.dumps(value if type(value) in _JSON_TYPES else _to_json(value))
    except (ValueError, TypeError, RecursionError):
        return json.dumps(safe_str(value, repr))


def decode_value(text: str, get_tag: Callable[[TagPath], Tag]) -> object:
    """Read text of `encode_value`; ``get_tag`` returns this side's tag of a path. Raises `ValueError`, `TypeError`."""
    if f'"{TYPE_KEY}"' not in text:
        return json.loads(text)
    return json.loads(text, object_hook=lambda fields: _from_json(fields, get_tag) if TYPE_KEY in fields else fields)


def _to_json(value: object) -> object:
    cls = type(value)
    if cls in _JSON_TYPES:
        return value
    if cls in _TEXTUAL:
        return {TYPE_KEY: cls.__name__, "value": _TEXTUAL[cls][0](value)}
    if isinstance(value, dict):
        if TYPE_KEY not in value and all(type(key) is str for key in value):
            return {key: _to_json(item) for key, item in value.items()}
        return {TYPE_KEY: "dict", "value": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_to_json(item) for item in value]
        kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        return items if kind is list else {TYPE_KEY: kind.__name__, "value": items}
    return _other_to_json(value)


def _other_to_json(value: object) -> object:
    for kind in (str, int, float):
        # An enumeration's member, or another subclass.
        if isinstance(value, kind):
            return kind(value)
    if type(value).__name__ == "SecurityDomainTag":
        tag: Any = value
        return {TYPE_KEY: "tag", "value": tag_path(tag)}
    return safe_str(value, repr)


def _from_json(fields: dict[str, Any], get_tag: Callable[[TagPath], Tag]) -> object:
    name, value = fields[TYPE_KEY], fields.get("value")
    if name in _TEXTUAL_BY_NAME and isinstance(value, str):
        return _TEXTUAL_BY_NAME[name](value)
    if isinstance(value, list):
        if name in _COLLECTIONS:
            return _COLLECTIONS[name](value)
        if name == "dict":
            return dict(value)
        if name == "tag":
            return get_tag([str(part) for part in value])
    raise ValueError(f"A value of type {str(name)[:100]!r} cannot be read here: install the same release on both sides")


#: Fields of events and responses that have their own field in the wire message.
_TEXT_FIELDS = frozenset({"request", "answer", "value"})
_WIRE_FIELDS = _TEXT_FIELDS | {
    "event_id",
    "timestamp",
    "security_domain",
    "event",
    "controllable",
    "observable",
    "content",
}


#: What has a name in a security domain.
_Named: TypeAlias = wire.WireConfigSpec | wire.WireControllable | wire.WireObservable


class Codec:
    """Decodes wire messages with one side's classes and tags."""

    def __init__(self, type_registry: TypeRegistry, tags: TagRegistry | None = None) -> None:
        self.type_registry = type_registry
        self.tags = TagRegistry(type_registry.module.SecurityDomainTag) if tags is None else tags
        self._located: tuple[list[Any], list[str]] | None = None

    # The description of a target.

    def describe(self, target: Any) -> wire.TargetDescriptor:
        """Return everything a target exposes in its current configuration.

        Its tags are registered: a response that names one has the target's own object.
        """
        tags = domain_tags(target.security_domain)
        self.tags.register(tags)
        return wire.TargetDescriptor(
            target_class=type(target).__name__,
            tags=[tag_path(tag) for tag in tags],
            tag_locations=self._locate(tags, type(target)),
            config_specs=[wire.WireConfigSpec(**_write_named(spec)) for spec in target.config_specs],
            query_specs=[
                wire.WireQuerySpec(
                    name=spec.name,
                    description=spec.description,
                    params=[wire.WireParam(name=each.name, description=each.description) for each in spec.params],
                )
                for spec in target.query_specs
            ],
            controllables=[write_controllable(each) for each in target.get_controllables()],
            observables=[
                wire.WireObservableValue(
                    observable=write_observable(value.observable), content=encode_value(value.content)
                )
                for value in target.get_observables()
            ],
        )

    def _locate(self, tags: list[Any], target_class: type) -> list[str]:
        # A target is described after each change of its configuration, and its tags rarely change.
        if self._located is None or [id(tag) for tag in self._located[0]] != [id(tag) for tag in tags]:
            self._located = (tags, locate_tags(tags, target_class))
        return self._located[1]

    def unresolved_tags(self, descriptor: wire.TargetDescriptor, *, by_path: bool = False) -> list[str]:
        """Register the descriptor's tags that are found in imported modules; return those that are not registered then.

        With ``by_path`` a tag in any imported module counts whose path is the same. Raises `ConfigError` if there are
        several such tags.
        """
        tag_class = self.type_registry.module.SecurityDomainTag
        for path, location in zip(descriptor.tags, descriptor.tag_locations, strict=False):
            tag = find_tag(location, path, tag_class)
            self.tags.register([] if tag is None else [tag])
        for path in descriptor.tags:
            if by_path and not self.tags.is_registered(path):
                found = find_tags_by_path(path, tag_class)
                if len(found) > 1:
                    raise ConfigError(
                        f"{len(found)} tags have the path {'/'.join(reversed(path))}: {', '.join(found)}. Pass the one "
                        "of the target in tags=[...]"
                    )
                self.tags.register(found.values())
        return ["/".join(reversed(path)) for path in descriptor.tags if not self.tags.is_registered(path)]

    def domain(self, descriptor: wire.TargetDescriptor) -> Any:
        """Return a descriptor's security domain, with this side's tags."""
        return self.type_registry.module.SecurityDomain([self.tags.get(path) for path in descriptor.tags])

    def config_specs(self, descriptor: wire.TargetDescriptor) -> list[Any]:
        """Return a descriptor's configuration slots."""
        return [self.type_registry.module.ConfigSpec(*self._read_named(spec)) for spec in descriptor.config_specs]

    def query_specs(self, descriptor: wire.TargetDescriptor) -> list[Any]:
        """Return a descriptor's queries."""
        make, param = self.type_registry.module.QuerySpec, self.type_registry.module.QueryParam
        return [
            make(spec.name, spec.description, [param(each.name, each.description) for each in spec.params])
            for spec in descriptor.query_specs
        ]

    def observables(self, descriptor: wire.TargetDescriptor) -> list[Any]:
        """Return a descriptor's observables with their values."""
        make = self.type_registry.module.ObservableValue
        return [
            make(self.observable(each.observable), decode_value(each.content, self.tags.get))
            for each in descriptor.observables
        ]

    def controllable(self, wire_controllable: wire.WireControllable) -> Any:
        """Decode a controllable."""
        named = self._read_named(wire_controllable)
        return self.type_registry.module.Controllable(*named, wire_controllable.value_type)

    def observable(self, wire_observable: wire.WireObservable) -> Any:
        """Decode an observable."""
        named = self._read_named(wire_observable)
        return self.type_registry.module.Observable(*named, wire_observable.observable_type)

    def _read_named(self, part: _Named) -> tuple[str, Tag, str]:
        return part.name, self.tags.get(part.domain), replace_surrogates(part.description)

    # The events and responses of a run.

    def event(self, wire_event: wire.WireEvent, *, timestamp: datetime) -> Any:
        """Decode an event with this timestamp. Raises `TypeError` for a class that is not registered here."""
        event_type = self.type_registry.events.get(wire_event.kind)
        if event_type is None:
            raise TypeError(
                f"Event type {wire_event.kind!r} is not registered here: pass it to the driver in events=[…]"
            )
        fields: dict[str, Any] = {
            "event_id": wire_event.event_id,
            "timestamp": timestamp,
            "security_domain": None if wire_event.domain is None else self.tags.get(wire_event.domain),
            "controllable": None if wire_event.controllable is None else self.controllable(wire_event.controllable),
            "observable": None if wire_event.observable is None else self.observable(wire_event.observable),
            "request": wire_event.request,
            "answer": wire_event.answer,
            "content": None if wire_event.content is None else decode_value(wire_event.content, self.tags.get),
            **self._read_extra(wire_event.extra),
        }
        return event_type(**_constructor_fields(event_type, fields))

    def response(self, wire_response: wire.WireResponse, event: Any) -> Any:
        """Decode the response to ``event``; it refers to this event object and its controllable.

        Raises `TypeError` for a class that is neither registered nor among the event's ``response_types``.
        """
        own_kinds = {each.__name__: each for each in type(event).response_types}
        response_type = own_kinds.get(wire_response.kind) or self.type_registry.responses.get(wire_response.kind)
        if response_type is None:
            raise TypeError(
                f"Response type {wire_response.kind!r} is unknown to the target: "
                f"name it in {type(event).__name__}.response_types"
            )
        named = None if wire_response.controllable is None else self.controllable(wire_response.controllable)
        own = getattr(event, "controllable", None)
        fields = {
            "event": event,
            "controllable": own if named == own else named,
            "value": wire_response.value,
            **self._read_extra(wire_response.extra),
        }
        return response_type(**_constructor_fields(response_type, fields))

    def _read_extra(self, extra: dict[str, str] | None) -> dict[str, object]:
        return {name: decode_value(text, self.tags.get) for name, text in (extra or {}).items()}


def write_controllable(controllable: Any) -> wire.WireControllable:
    """Encode a controllable."""
    return wire.WireControllable(**_write_named(controllable), value_type=controllable.value_type)


def write_observable(observable: Any) -> wire.WireObservable:
    """Encode an observable."""
    return wire.WireObservable(**_write_named(observable), observable_type=observable.observable_type)


def _write_named(part: Any) -> dict[str, Any]:
    """The fields of all that has a name in a security domain."""
    domain = tag_path(part.security_domain)
    return {"name": part.name, "domain": domain, "description": replace_surrogates(part.description)}


def write_event(event: Any) -> wire.WireEvent:
    """Encode an event; later changes of its content have no effect."""
    domain = event.security_domain
    return wire.WireEvent(
        kind=type(event).__name__,
        event_id=event.event_id,
        at=event.timestamp.timestamp(),
        domain=None if domain is None else tag_path(domain),
        controllable=_write_if_present(event, "controllable", write_controllable),
        observable=_write_if_present(event, "observable", write_observable),
        request=_text_attribute(event, "request"),
        answer=_text_attribute(event, "answer"),
        content=encode_value(event.content) if hasattr(event, "content") else None,
        extra=_write_extra(event),
    )


def write_response(response: Any) -> wire.WireResponse:
    """Encode a response. Raises `TypeError` for an object that is no response."""
    if not dataclasses.is_dataclass(response) or not hasattr(response, "event"):
        raise TypeError(f"An event is answered with an EventResponse, not with {type(response).__name__}")
    return wire.WireResponse(
        kind=type(response).__name__,
        controllable=_write_if_present(response, "controllable", write_controllable),
        value=_text_attribute(response, "value"),
        extra=_write_extra(response),
    )


def _write_if_present(owner: Any, name: str, write: Callable[[Any], Any]) -> Any:
    value = getattr(owner, name, None)
    return None if value is None else write(value)


def _text_attribute(owner: Any, name: str) -> str | None:
    value = getattr(owner, name, None)
    return replace_surrogates(value) if isinstance(value, str) else None


def _write_extra(owner: Any) -> dict[str, str] | None:
    """Encode fields without a wire field of their own, and text fields whose value is not a string."""
    owner_class: Any = type(owner)
    further = {}
    for name in _fields_without_wire_type(owner_class):
        value = getattr(owner, name)
        if name not in _TEXT_FIELDS or not (value is None or isinstance(value, str)):
            further[name] = encode_value(value)
    return further or None


@lru_cache(maxsize=256)
def _fields_without_wire_type(cls: Any) -> tuple[str, ...]:
    """Return the fields of a class that are sent as values of their own: always, or where they are no text."""
    names = [field.name for field in dataclasses.fields(cls)]
    return tuple(name for name in names if name not in _WIRE_FIELDS or name in _TEXT_FIELDS)


def _constructor_fields(cls: Any, fields: dict[str, Any]) -> dict[str, Any]:
    names = _constructor_names(cls)
    return {name: value for name, value in fields.items() if name in names}


@lru_cache(maxsize=256)
def _constructor_names(cls: Any) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(cls) if field.init)


def domain_tags(domain: Any) -> list[Any]:
    """Return a domain's tags in their original order; superred's has them in a private dict and exposes only roots."""
    return list(domain.tags) if hasattr(domain, "tags") else list(vars(domain)["_tags"].values())
