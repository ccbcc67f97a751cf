"""A kept message as it is sent again: to whom, and what is refused and stays."""

from __future__ import annotations

import json

import pytest

from quintain.dlq import PoisonMessage
from quintain.errors import BadRequest
from quintain_cli.commands.dlq import replay_request


def message(key: str) -> PoisonMessage:
    return PoisonMessage(id="0a1b", routing_key=key, type="invoke", size_bytes=0, headers={})


@pytest.mark.parametrize(
    ("key", "named", "option", "goes_to"),
    [
        ("sage", {}, None, "sage"),
        ("sage", {"target": "sage"}, None, "sage"),
        ("sage", {"provider": "sage"}, None, "sage"),
        ("", {"provider": "sage"}, None, "sage"),
        ("", {}, None, None),
        ("sage", {}, "echo", "echo"),
        ("sage", {"target": "rogue"}, "echo", "echo"),
        ("", {"provider": "rogue"}, "echo", "echo"),
    ],
)
def test_it_goes_where_it_was_sent_unless_somebody_says_otherwise(
    key: str, named: dict[str, str], option: str | None, goes_to: str | None
) -> None:
    body = {"question": "why?", "systemPrompt": "be brief", "settings": {"maxTokens": 7}, **named}
    request = replay_request(message(key), json.dumps(body).encode(), option)
    assert request.requested_target == goes_to
    assert request.provider is None
    assert (request.question, request.system_prompt) == ("why?", "be brief")
    assert request.settings.max_tokens == 7


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "Missing required field: question"),
        (b'{"question": 7}', "question"),
        (b'{"question": "x", "target": "rogue"}', "names target 'rogue', the routing key 'sage': choose one"),
    ],
)
def test_what_is_no_request_is_refused_and_stays(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as refused:
        replay_request(message("sage"), body, None)
    assert "it is kept; `quintain dlq drop 0a1b`" in refused.value.message
