"""The operations on PostgreSQL, asked for what no honest client asks: the same promise as over SQLite.

SQLite takes text and numbers that PostgreSQL refuses; a refusal that reaches the caller as a defect is one of ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quintain.contracts.headers import TOKEN_HEADER
from quintain.topology import METADATA
from support import valid_messages
from support.delivery_checks import deliver_and_check
from support.hostile_messages import HostileMessage, to_json
from support.observed_fleet import ADMIN_TOKEN, REPLY_KEY, ObservedFleet, observed_fleet
from support.servers.postgres_admin import PostgresUnderTest
from support.servers.postgres_sql import fresh_database

ADMINISTRATIVE = ("amend", "list", "open", "show")

#: Text that JSON carries and PostgreSQL does not, or not everywhere.
NO_TEXT = ["\0", "a\0b", "x" * 3_000, "\ufffe", "\U0010ffff"]


@pytest.fixture(scope="module")
def fleet(postgres: PostgresUnderTest) -> Iterator[ObservedFleet]:
    with fresh_database(postgres.url) as url, observed_fleet(url) as fleet:
        yield fleet


def token_for(fleet: ObservedFleet, operation: str) -> str:
    return ADMIN_TOKEN if operation in ADMINISTRATIVE else fleet.session.token


@pytest.mark.parametrize("text", NO_TEXT, ids=ascii)
@pytest.mark.parametrize(
    ("operation", "field"),
    [
        ("open", "label"),
        ("open", "defaultTarget"),
        ("amend", "sessionId"),
        ("show", "sessionId"),
        ("list", "cursor"),
        ("reserve", "requestIds"),
        ("release", "requestIds"),
        ("cancel", "requestIds"),
    ],
)
def test_text_that_no_column_takes_is_a_bad_request_or_kept(
    fleet: ObservedFleet, operation: str, field: str, text: str
) -> None:
    message = valid_messages.operations(fleet.other_session.session_id)[operation]
    assert isinstance(message, dict)
    body = to_json({**message, field: [text] if isinstance(message[field], list) else text})
    told = {TOKEN_HEADER: token_for(fleet, operation)}
    deliver_and_check(fleet, METADATA, operation, HostileMessage(body=body, headers=told, reply_to=REPLY_KEY))
