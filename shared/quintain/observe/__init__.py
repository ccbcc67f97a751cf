"""What a service tells of itself: logs, spans, metrics and health.

`spans` creates spans, `semconv` defines their names and attributes, `export` sends them: the only users of
OpenTelemetry. Without the library, or without an exporter, spans cost almost nothing and an incoming trace context is
still propagated.
"""
