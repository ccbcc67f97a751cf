"""Stops, starts and inspects a broker that belongs to the test run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from support.servers.amqp_handshake import read_version
from support.servers.errors import ServerUnavailable
from support.servers.kind import Server, wait_for_version

_START_SECONDS = 60.0

#: What an evaluated expression prints last, where it succeeded: by ``rabbitmqctl eval`` and by ``erl_call``.
_ENDINGS = ("{ok, ok}", "ok")

#: The rows of a list of RabbitMQ's as JSON: texts, numbers, and Erlang terms as text.
_PRINT_ROWS = """
Value = fun({resource, _, _, Name}) -> Name;
           (Number) when is_integer(Number) -> Number;
           (Term) -> iolist_to_binary(io_lib:format("~p", [Term])) end,
Rows = [maps:from_list([{Key, Value(Term)} || {Key, Term} <- Row]) || Row <- ROWS],
io:put_chars(rabbit_json:encode(Rows))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdmin:
    """Administers one broker.

    ``run_erlang`` takes an Erlang expression that ends with a period, and returns what is printed by running it on the
    broker, and its value: at a private node without ``rabbitmqctl``, which takes a second of processor time. Everything
    blocks, for a second or more: in a coroutine call it through `asyncio.to_thread`. Everything raises
    `ServerUnavailable` where it fails.
    """

    url: str
    run_erlang: Callable[[str], str]

    def evaluate(self, expressions: str) -> str:
        """Run Erlang expressions, separated by commas, on the broker. Return what they print."""
        output = self.run_erlang(f"{expressions.strip()}, ok.\n")
        for ending in _ENDINGS:
            if output.endswith(ending):
                return output.removesuffix(ending)
        raise ServerUnavailable(f"{expressions.strip()} failed: {output}")

    def list_queues(self) -> list[dict[str, object]]:
        """Return the ``name``, ``arguments``, ``messages`` and ``consumers`` of each queue of the default virtual
        host."""
        return self._rows('rabbit_amqqueue:info_all(<<"/">>, [name, arguments, messages, consumers])')

    def list_connections(self) -> list[dict[str, object]]:
        """Return the ``pid`` and the ``client_properties`` of each connection."""
        return self._rows("rabbit_networking:connection_info_all([pid, client_properties])")

    def list_channels(self) -> list[dict[str, object]]:
        """Return the ``pid`` of each channel."""
        return self._rows("rabbit_channel:info_all([pid])")

    def _rows(self, expression: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = json.loads(self.evaluate(_PRINT_ROWS.replace("ROWS", expression)))
        return rows

    def stop_app(self) -> None:
        """Close every connection and stop listening; durable queues and messages stay."""
        self.evaluate("ok = rabbit:stop()")

    def start_app(self) -> None:
        """Listen again, at the same address; returns when the broker answers."""
        self.evaluate("ok = rabbit:start()")
        wait_for_version(lambda: read_version(self.url), timeout_seconds=_START_SECONDS)


BrokerUnderTest = Server[BrokerAdmin]
