"""A receiver of OTLP/HTTP on a real socket: keeps every span that it is sent, as the protobuf says it."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

Value = str | int | float | bool | list[str] | None


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it arrived. Ids are hexadecimal, moments nanoseconds since the epoch."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    failed: bool
    starts_ns: int
    ends_ns: int
    attributes: Mapping[str, Value]


class OtlpReceiver:
    """What has arrived so far."""

    def __init__(self) -> None:
        self.url = ""
        self._bodies: list[bytes] = []
        self._changed = threading.Condition()

    @property
    def env(self) -> dict[str, str]:
        """What a process is told to send its spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def add(self, body: bytes) -> None:
        with self._changed:
            self._bodies.append(body)
            self._changed.notify_all()

    @property
    def raw(self) -> bytes:
        """All that arrived, as bytes, to look for what must not be in it."""
        with self._changed:
            return b"".join(self._bodies)

    @property
    def spans(self) -> list[ReceivedSpan]:
        with self._changed:
            return [span for body in self._bodies for span in parse_spans(body)]

    def wait_for(self, condition: Callable[[list[ReceivedSpan]], bool], *, seconds: float = 20) -> list[ReceivedSpan]:
        """Wait until what has arrived is enough."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: condition(self.spans), seconds)
            assert arrived, f"not within {seconds} s:\n{format_tree(self.spans)}"
            return self.spans


def parse_spans(body: bytes) -> Iterator[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        resource_attributes = {pair.key: attribute_value(pair.value) for pair in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield to_received_span(str(resource_attributes["service.name"]), span)


def to_received_span(service: str, span: Span) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        starts_ns=span.start_time_unix_nano,
        ends_ns=span.end_time_unix_nano,
        attributes={pair.key: attribute_value(pair.value) for pair in span.attributes},
    )


def attribute_value(value: AnyValue) -> Value:
    field_name = value.WhichOneof("value")
    if field_name == "array_value":
        return [one.string_value for one in value.array_value.values]
    return getattr(value, field_name) if field_name else None


def format_tree(spans: list[ReceivedSpan]) -> str:
    """The spans as people draw them: each beneath its parent, in the order in which they began."""
    known = {span.span_id for span in spans}
    lines: list[str] = []

    def add_lines(parent: str, depth: int) -> None:
        children = [span for span in spans if (span.parent_id if span.parent_id in known else "") == parent]
        for span in sorted(children, key=lambda one: one.starts_ns):
            lines.append(f"{'  ' * depth}{span.name}  ({span.service}, {span.kind})")
            add_lines(span.span_id, depth + 1)

    add_lines("", 0)
    return "\n".join(lines)


@contextlib.contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver on a free port of the loopback."""
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            receiver.add(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
