"""The AsyncAPI document: whole, and made of what the services stand on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema_rs
import pytest

from quintain import routes
from quintain.routes import ROUTES, Route
from quintain_cli.commands.schema import asyncapi_document

Node = dict[str, object]

DOCUMENT = asyncapi_document()


def refs_in(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for part in node.values():
            yield from refs_in(part)
    elif isinstance(node, list):
        for part in node:
            yield from refs_in(part)


def found(ref: str) -> object:
    node: object = DOCUMENT
    for part in ref.removeprefix("#/").split("/"):
        assert isinstance(node, dict)
        node = node[part]
    return node


def test_every_reference_leads_somewhere_and_the_document_is_json() -> None:
    refs = set(refs_in(DOCUMENT))
    assert len(refs) > 100
    assert all(isinstance(found(ref), dict) for ref in refs)
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT


def test_no_route_is_left_out() -> None:
    listed = [value for value in vars(routes).values() if isinstance(value, Route)]
    assert set(map(id, listed)) == set(map(id, ROUTES))
    for route in ROUTES:
        operation = DOCUMENT["operations"][route.name]
        channel = found(operation["channel"]["$ref"])
        assert isinstance(channel, dict)
        assert channel["bindings"]["amqp"]["exchange"]["name"] == route.exchange.name
        assert ("reply" in operation) == (route.name not in {"settle", "heartbeat_probe", "attempts_ended"})


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["messages"]))
def test_the_schemas_of_a_message_are_schemas(name: str) -> None:
    message = DOCUMENT["components"]["messages"][name]
    schema = {**message["payload"], "components": DOCUMENT["components"]}
    is_group = message["contentType"] != "application/json"
    assert jsonschema_rs.is_valid(schema, "text") == is_group, "a body is an object, and that of a group is bytes"
    assert jsonschema_rs.is_valid(
        message["headers"], {"correlation_id": "1", "reply_to": "k", "x-quintain-session": "t"}
    )
