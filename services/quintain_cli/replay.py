"""``quintain dlq replay``: a kept message sent again, under the operator's own session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from quintain.client.connect import connect
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.poison import Poisoned
from quintain.errors import BadRequest, ConfigError, Expired, Fault
from quintain.settings import environment, read_settings
from quintain_cli.dlq import CONNECT_SECONDS, AsJson, PoisonId, drop, found, one_line
from quintain_cli.invoke import show_result
from quintain_cli.screen import fail, run_command, tell


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of it; ``fault`` is that of a call which was charged and is over."""

    result: Result | None
    fault: Fault | None


def replay(
    poison_id: PoisonId,
    target: Annotated[str | None, typer.Option(help="The target; the one it was sent to if absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message again, and drop it once its call is charged and answered.

    Takes QUINTAIN_SESSION_TOKEN: the message's own token is masked and opens nothing. Doing it twice in one session
    is one call.
    """
    replayed = run_command(_replay(poison_id, target), as_json=as_json)
    # The answer is shown first: whatever becomes of the message, it was paid for.
    if replayed.result is not None:
        show_result(replayed.result, as_json=as_json)
    run_command(drop([poison_id]))
    if not as_json:
        tell(f"dropped  {one_line(poison_id)}: it is answered\nnext     quintain dlq list")
    if replayed.fault is not None:
        fail(replayed.fault, as_json=as_json)


async def _replay(poison_id: str, target: str | None) -> Replayed:
    if read_settings(environment()).session_token is None:
        raise ConfigError(
            "QUINTAIN_SESSION_TOKEN is not set: the message's own token is masked, so it is sent under a session of "
            "yours: open one with `quintain session open --default-target NAME`"
        )
    async with connect(timeout_seconds=CONNECT_SECONDS) as client:
        message, body = await found(poison_id)
        request = request_of(message, body, target)
        # The same message to the same target under the same session is the same call: charged once.
        request_id = f"dlq-{message.id[:32]}-{(request.names or '')[:63]}"
        try:
            return Replayed(await client.send(request, request_id=request_id), None)
        except Expired:
            raise  # nobody answered in time: the answer may still be had under the same request id
        except Fault as fault:
            if not fault.charged:
                raise
            return Replayed(None, fault)


def request_of(message: Poisoned, body: bytes, target: str | None) -> InvokeRequest:
    """The request of a kept message: to this target, else to the one its routing key names, else to the one its
    body names. Raises `BadRequest` where the body is no invoke request, or names another target."""
    mend = f"it stays where it is; `quintain dlq drop {message.id}` deletes it"
    try:
        request = InvokeRequest.from_wire(body)
    except BadRequest as unreadable:
        raise BadRequest(f"This message is no invoke request ({unreadable.message}): {mend}") from None
    key = message.routing_key
    if target is None and key and request.names not in {None, key}:
        raise BadRequest(
            f"The body names target {request.names!r}, the routing key {key!r}: say which with --target; {mend}"
        )
    chosen = target or key or request.names
    return request.model_copy(update={"target": chosen, "provider": None})
