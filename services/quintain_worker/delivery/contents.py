"""Fetches the bodies of requests that are stored in the fleet's content store."""

from __future__ import annotations

import asyncio
import hashlib
import logging

from quintain.contracts.contents import ContentReference, GetContent, count_pieces, decode_piece
from quintain.contracts.invoke import InvokeRequest
from quintain.errors import BadRequest, BusError, Expired, Fault, InternalFault, NoAnswer
from quintain.routes import GET_CONTENT
from quintain.rpc.client import RpcClient
from quintain.runtime.concurrency import run_for_each
from quintain.timings import Timings
from quintain_worker.delivery.request import parse_body, truncate_message
from quintain_worker.delivery.worker_target import WorkerTarget
from quintain_worker.providers.provider import CallHolder

log = logging.getLogger(__name__)

#: How many bodies a worker reads at a time, and how many pieces of each: until it is parsed, a body takes several times
#: its size.
CONCURRENT_BODIES, CONCURRENT_PIECES = 2, 4

#: How often a piece is requested again after an answer that is a defect.
MAX_DEFECTS = 10


class ContentReader:
    """Reads contents for the attempts of one worker process."""

    def __init__(self, rpc_client: RpcClient, timings: Timings) -> None:
        self._rpc_client, self._timings = rpc_client, timings
        self._reading = asyncio.Semaphore(CONCURRENT_BODIES)

    async def fetch(
        self, content: ContentReference, holder: CallHolder, target: WorkerTarget, timeout_seconds: float
    ) -> InvokeRequest:
        """Return the request whose body this content is; its size and hash are those of the reference.

        Raises `Expired` where it cannot be read within ``timeout_seconds``, and `BadRequest` where it is not stored,
        or not any more, is not what the reference says, or is no valid request for the target.
        """
        try:
            async with asyncio.timeout(max(timeout_seconds, 0)), self._reading:
                body = await self._read_all(content, holder)
                return parse_body(body, target.name, target.inputs)
        except TimeoutError:
            raise Expired("The deadline passed before the body was read from the content store") from None
        except Fault as fault:
            raise truncate_message(fault) from None

    async def _read_all(self, content: ContentReference, holder: CallHolder) -> bytes:
        pieces: dict[int, bytes] = {}

        async def read(number: int) -> None:
            pieces[number] = await self._read_piece(holder, number)

        await run_for_each(range(count_pieces(content.size)), read, limit=CONCURRENT_PIECES)
        body = b"".join(pieces[number] for number in sorted(pieces))
        digest = await asyncio.to_thread(hashlib.sha256, body)
        if len(body) != content.size or digest.hexdigest() != content.sha256:
            raise BadRequest("content: the stored body has another size or hash than the request says")
        return body

    async def _read_piece(self, holder: CallHolder, number: int) -> bytes:
        request = GetContent(
            session_id=holder.session_id,
            request_id=holder.request_id,
            attempt_id=holder.attempt_id,
            incarnation=holder.incarnation,
            piece=number,
        )
        defects = 0
        while True:
            try:
                answer = await self._rpc_client.call_route(
                    GET_CONTENT, request, {}, timeout_seconds=self._timings.register_timeout_seconds
                )
                return decode_piece(answer.data)
            except Fault as fault:
                # A metadata service of an earlier release answers with a defect; another one may be asked next.
                is_defect = isinstance(fault, InternalFault)
                defects += is_defect
                if not fault.retryable and not (is_defect and defects <= MAX_DEFECTS):
                    raise
                problem = fault.message
            except (NoAnswer, BusError) as error:
                problem = error.message
            log.info("A piece of a request's body could not be read and is requested again: %s", problem)
            await asyncio.sleep(self._timings.publish_pause_seconds)
