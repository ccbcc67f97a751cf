"""The messages that docs/protocol/hosts.md prints are messages of a lease."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quintain.contracts.hosting import DriverMessage, HostMessage
from quintain.contracts.message import Message
from quintain.contracts.remote_target import TargetDescriptor, WireEvent, WireResponse

PAGE = (Path(__file__).parents[3] / "docs" / "protocol" / "hosts.md").read_text()

BLOCKS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

#: The items in the tables; what they leave out stands for an event or a response that is printed elsewhere.
ITEMS = re.findall(r'^\| `(\{"type".*?\})` \|', PAGE, re.MULTILINE)

KINDS: dict[str, type[Message]] = {
    "items": HostMessage,
    "eventId": WireEvent,
    "tags": TargetDescriptor,
    "failure": WireResponse,
    "controllable": WireResponse,
}


@pytest.mark.parametrize("text", BLOCKS)
def test_each_block_is_read_with_all_its_fields(text: str) -> None:
    printed = json.loads(text)
    kind = next(kind for key, kind in KINDS.items() if key in printed)
    assert contains(json.loads(kind.from_wire(text).to_wire()), printed)


@pytest.mark.parametrize("text", ITEMS)
def test_each_item_is_read_with_all_its_fields(text: str) -> None:
    event = next(block for block in BLOCKS if "eventId" in block)
    response = next(block for block in BLOCKS if "ControllableInjection" in block)
    item = text.replace('"event": {…}', f'"event": {event}').replace('"response": {…}', f'"response": {response}')
    is_host = json.loads(item)["type"] in {"offered", "result", "emit", "send", "log", "ended"}
    message = (HostMessage if is_host else DriverMessage).from_wire(
        f'{{"number": 1, "processed": 0, "items": [{item}]}}'
    )
    assert contains(json.loads(message.to_wire())["items"][0], json.loads(item))


def test_all_items_are_on_the_page() -> None:
    assert {json.loads(item.replace("{…}", "{}"))["type"] for item in ITEMS} == {
        *("open", "set_config", "describe", "query", "run", "cancel", "reset", "teardown", "reply"),
        *("offered", "result", "emit", "send", "log", "ended"),
    }


def contains(read: object, printed: object) -> bool:
    """Whether everything that is printed was read."""
    if isinstance(printed, dict):
        return isinstance(read, dict) and all(key in read and contains(read[key], printed[key]) for key in printed)
    if isinstance(printed, list):
        return isinstance(read, list) and all(map(contains, read, printed))
    return read == printed
