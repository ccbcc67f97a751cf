"""The sizes of message bodies (``protocol.md`` §2 and §3), in bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

#: The largest request of a session that was opened without a limit of its own.
DEFAULT_REQUEST_BYTES = 1024 * 1024

#: The largest reply of a session whose limit is not higher, and the largest one that the ledger is sent for replays.
DEFAULT_REPLY_BYTES = 8 * 1024 * 1024

#: The largest body of one message, and so of a reply: by default RabbitMQ 4 refuses larger messages.
MAX_BODY_BYTES = 16 * 1024 * 1024

#: The largest request of a session in a fleet with a content store; a larger one than `MAX_BODY_BYTES` is stored there,
#: in pieces of `CONTENT_PIECE_BYTES`, and its message names it.
MAX_CONTENT_BYTES = 256 * 1024 * 1024
CONTENT_PIECE_BYTES = 512 * 1024

#: The largest event or response of a hosted target's run, as JSON: several of them may be in one message.
MAX_RUN_ITEM_BYTES = 8 * 1024 * 1024

#: The largest body of a metadata operation; 10,000 request ids of 128 ASCII characters are 1.3 MB.
MAX_OPERATION_BYTES = 2 * 1024 * 1024

#: The prefetch of each queue of the metadata service that clients can write to: with messages of `MAX_BODY_BYTES`, 128
#: MiB of one queue are in the service's memory at most.
CLIENT_QUEUE_PREFETCH = 8

#: A session's limit: of its requests, and of its replies where that is more than `DEFAULT_REPLY_BYTES`. More than
#: `MAX_BODY_BYTES` needs a fleet with a content store.
BodyBytes = Annotated[int, Field(gt=0, le=MAX_CONTENT_BYTES)]
