"""The operations on PostgreSQL, asked for what no honest client asks: the same promise as over SQLite.

SQLite takes text and numbers that PostgreSQL refuses; a refusal that reaches the caller as a defect is one of ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quintain.contracts.headers import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.topology import DEAD, INVOKE, LEDGER, METADATA
from support import valid_messages
from support.delivery_checks import deliver, deliver_and_check
from support.hostile_messages import HEADER_VALUES, HostileMessage, deliveries, to_json
from support.observed_fleet import ADMIN_TOKEN, REPLY_KEY, ObservedFleet, observed_fleet
from support.servers.postgres_admin import PostgresUnderTest
from support.servers.postgres_sql import fresh_database

fuzz = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

ADMINISTRATIVE = ("amend", "list", "open", "show")

#: Text that JSON carries and PostgreSQL does not, or not everywhere.
NO_TEXT = ["\0", "a\0b", "x" * 3_000, "\ufffe", "\U0010ffff"]


@pytest.fixture(scope="module")
def fleet(postgres: PostgresUnderTest) -> Iterator[ObservedFleet]:
    with fresh_database(postgres.url) as url, observed_fleet(url) as fleet:
        yield fleet


def token_for(fleet: ObservedFleet, operation: str) -> str:
    return ADMIN_TOKEN if operation in ADMINISTRATIVE else fleet.session.token


@fuzz
@given(data=st.data(), operation=st.sampled_from(sorted(valid_messages.operations(""))))
def test_hostile_questions_to_the_operations(fleet: ObservedFleet, data: st.DataObject, operation: str) -> None:
    message = valid_messages.operations(fleet.other_session.session_id)[operation]
    told = {TOKEN_HEADER: token_for(fleet, operation)}
    deliver_and_check(
        fleet, METADATA, operation, data.draw(deliveries(message, valid_headers=told, reply_to=REPLY_KEY))
    )


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


@fuzz
@given(data=st.data(), key=st.sampled_from(["register", "heartbeat", "admit"]))
def test_hostile_workers(fleet: ObservedFleet, data: st.DataObject, key: str) -> None:
    messages = {"register": valid_messages.REGISTER, "heartbeat": valid_messages.HEARTBEAT}
    message = messages.get(key, valid_messages.admit_batch(fleet.session.token))
    deliver_and_check(fleet, LEDGER, key, data.draw(deliveries(message, valid_headers={}, reply_to=REPLY_KEY)))
    settles = valid_messages.settle_batch(fleet.session.session_id)
    assert deliver(fleet, LEDGER, "settle", data.draw(deliveries(settles, valid_headers={}, reply_to=REPLY_KEY))) == []


@fuzz
@given(request_id=HEADER_VALUES, place=st.sampled_from(["a", "", "nobody", "dead"]))
def test_hostile_request_ids(fleet: ObservedFleet, request_id: object, place: str) -> None:
    told = {TOKEN_HEADER: fleet.session.token, REQUEST_ID_HEADER: request_id}
    delivered = HostileMessage(body=to_json(valid_messages.QUESTION), headers=told, reply_to=REPLY_KEY)
    exchange = DEAD if place == "dead" else INVOKE
    deliver_and_check(fleet, exchange, "a" if place == "dead" else place, delivered, allow_internal=place == "dead")
