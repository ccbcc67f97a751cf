"""The sizes of message bodies (``protocol.md`` §2 and §3), in bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

#: The largest request of a session that was opened without a limit of its own.
DEFAULT_REQUEST_BYTES = 1024 * 1024

#: The largest reply of a session whose limit is not higher, without the repetition of its text.
DEFAULT_REPLY_BYTES = 8 * 1024 * 1024

#: A larger reply is compressed by its worker, and is read from the ledger by itself.
LARGE_REPLY_BYTES = 64 * 1024

#: The largest reply after compression, in bytes, that is kept for replays.
MAX_STORED_REPLY_BYTES = 1024 * 1024

#: The largest body of one message, and so of a reply: by default RabbitMQ 4 refuses larger messages.
MAX_BODY_BYTES = 16 * 1024 * 1024

#: The largest reply that is kept for replays: with the JSON around it, it must fit into one message.
MAX_REPLAY_BYTES = MAX_BODY_BYTES - 4096

#: The largest event or response of a hosted target's run, as JSON: several of them may be in one message.
MAX_RUN_ITEM_BYTES = 8 * 1024 * 1024

#: The largest body of a metadata operation; 10,000 request ids of 128 ASCII characters are 1.3 MB.
MAX_OPERATION_BYTES = 2 * 1024 * 1024

#: The prefetch of each queue of the metadata service that clients can write to: with messages of `MAX_BODY_BYTES`, 128
#: MiB of one queue are in the service's memory at most.
CLIENT_QUEUE_PREFETCH = 8

#: A session's limit: of its requests, and of its replies where that is more than `DEFAULT_REPLY_BYTES`.
BodyBytes = Annotated[int, Field(gt=0, le=MAX_BODY_BYTES)]
