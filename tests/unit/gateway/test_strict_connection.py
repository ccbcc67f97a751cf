"""A head with a Content-Length leaves together with its body; any other leaves at once."""

from __future__ import annotations

from collections.abc import Callable

import h11
import pytest

from quintain_gateway.server.strict_http import StrictConnection

END = b"\r\n\r\n"


@pytest.fixture
def asked() -> Callable[[bytes], StrictConnection]:
    def with_request(method: bytes) -> StrictConnection:
        connection = StrictConnection(1000)
        connection.receive_data(method + b" / HTTP/1.1\r\nHost: x" + END)
        assert isinstance(connection.next_event(), h11.Request)
        return connection

    return with_request


def response(**headers: str) -> h11.Response:
    return h11.Response(status_code=200, headers=[(name.replace("_", "-"), value) for name, value in headers.items()])


def test_a_whole_response_is_one_piece(asked: Callable[[bytes], StrictConnection]) -> None:
    connection = asked(b"GET")
    assert connection.send(response(content_length="2")) == b""
    piece = connection.send(h11.Data(data=b"ok"))
    assert piece is not None
    assert piece.startswith(b"HTTP/1.1 200 ")
    assert piece.endswith(END + b"ok")
    assert connection.send(h11.EndOfMessage()) == b""


def test_a_whole_response_without_a_body_is_sent(asked: Callable[[bytes], StrictConnection]) -> None:
    connection = asked(b"HEAD")
    pieces = [
        connection.send(event) for event in (response(content_length="2"), h11.Data(data=b""), h11.EndOfMessage())
    ]
    assert (pieces[1] or b"").endswith(END)
    assert pieces[0] == pieces[2] == b""


def test_the_head_of_a_stream_is_sent_at_once(asked: Callable[[bytes], StrictConnection]) -> None:
    connection = asked(b"GET")
    assert (connection.send(response(content_type="text/event-stream")) or b"").endswith(END)
    assert connection.send(h11.Data(data=b"ok")) == b"2\r\nok\r\n"


def test_a_closed_connection_has_no_bytes(asked: Callable[[bytes], StrictConnection]) -> None:
    assert asked(b"GET").send(h11.InformationalResponse(status_code=103, headers=[])) is not None
    assert StrictConnection(1000).send(h11.ConnectionClosed()) is None
