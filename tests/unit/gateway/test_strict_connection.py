"""A head with a Content-Length leaves together with its body, any other at once; ambiguous heads are refused."""

from __future__ import annotations

from collections.abc import Callable

import h11
import pytest

from quintain_gateway.server import StrictConnection
from quintain_gateway.settings import BindAddress

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


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://y:80/invoke?a=b", b"/invoke?a=b", b"y:80"),
        (b"HTTPS://y", b"/", b"y"),
        (b"http://y?a=b", b"/?a=b", b"y"),
        (b"/invoke", b"/invoke", b"x"),
        (b"/http://y/invoke", b"/http://y/invoke", b"x"),
    ],
)
def test_a_target_in_absolute_form_is_its_path_and_its_host(target: bytes, path: bytes, host: bytes) -> None:
    connection = StrictConnection(1000)
    connection.receive_data(b"POST " + target + b" HTTP/1.1\r\nA: b\r\nhost: x" + END)
    request = connection.next_event()
    assert (request.target, dict(request.headers)[b"host"]) == (path, host)


def test_a_target_in_absolute_form_is_the_host_of_a_request_without_the_header() -> None:
    connection = StrictConnection(1000)
    connection.receive_data(b"GET http://evil.example/info HTTP/1.0" + END)
    request = connection.next_event()
    assert list(request.headers) == [(b"host", b"evil.example")]


def test_a_target_in_absolute_form_still_needs_one_host_header() -> None:
    for hosts in (b"", b"Host: x\r\nHost: z\r\n"):
        connection = StrictConnection(1000)
        connection.receive_data(b"POST http://y/invoke HTTP/1.1\r\n" + hosts + b"\r\n")
        with pytest.raises(h11.RemoteProtocolError):
            connection.next_event()


@pytest.mark.parametrize("body", [b"\n x", b"a\nb", b" folded?\n\n"])
def test_only_the_lines_of_the_head_are_checked(body: bytes) -> None:
    connection = StrictConnection(1000)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d" % len(body) + END + body)
    assert isinstance(connection.next_event(), h11.Request)
    data = connection.next_event()
    assert data.data == body


def test_an_ambiguous_head_behind_a_whole_request_is_refused(asked: Callable[[bytes], StrictConnection]) -> None:
    connection = asked(b"GET")
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\n c" + END)
    assert connection.next_event() is h11.PAUSED
    connection.send(h11.Response(status_code=204, headers=[]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()


def test_beyond_loopback_only_configured_names_are_checked() -> None:
    assert BindAddress(host="0.0.0.0").host_names() is None
    for host in ("0.0.0.0", "127.0.0.1"):
        names = BindAddress(host=host, allowed_hosts=("Gateway.example",)).host_names()
        assert {"gateway.example", "localhost"} <= (names or set())
