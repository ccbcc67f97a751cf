"""Every fault is an error that OpenAI's and Anthropic's clients know, and that says whether they should retry."""

from __future__ import annotations

import json

import pytest

from quintain.errors import FAULTS, BadRequest, Fault, Overloaded
from quintain_gateway.endpoint import ANTHROPIC, OPENAI

ANTHROPICS_TYPES = {
    "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error",
    "request_too_large", "rate_limit_error", "timeout_error", "overloaded_error", "api_error",
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS.values())
def test_no_client_repeats_what_was_charged_or_would_be_refused_again(kind: type[Fault]) -> None:
    fault = kind()
    unknown = {"chargeUnknown"} if fault.charged is None else set()
    openais, anthropics = OPENAI.error_response(fault), ANTHROPIC.error_response(fault)
    error = json.loads(bytes(openais.body))["error"]
    assert error.keys() == {"message", "type", "param", "code", "charged"} | unknown
    assert json.loads(bytes(anthropics.body))["error"]["type"] in ANTHROPICS_TYPES
    for response in (openais, anthropics):
        assert 400 <= response.status_code < 600
        assert response.headers["x-should-retry"] == "false" or (fault.retryable and fault.charged is not True)


def test_when_to_come_back_is_told_in_the_clients_own_header() -> None:
    headers = OPENAI.error_response(Overloaded(retry_after_ms=1500)).headers
    assert [headers[name] for name in ("x-should-retry", "retry-after", "retry-after-ms")] == ["true", "2", "1500"]


def test_fields_have_dots_before_their_indexes() -> None:
    fault = BadRequest("messages[0].content[1].file_id: it is stored")
    fault.parameter = "messages[0].content[1].file_id"
    error = json.loads(bytes(OPENAI.error_response(fault).body))["error"]
    named = "messages.0.content.1.file_id"
    assert (error["param"], error["message"]) == (named, f"{named}: it is stored")
