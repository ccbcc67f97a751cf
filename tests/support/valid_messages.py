"""What an honest publisher says to each consumer, every field filled: what hostile data is made from."""

from __future__ import annotations

import time

IN_AN_HOUR = int(time.time() * 1000) + 3_600_000

QUESTION: dict[str, object] = {
    "question": "why?",
    "systemPrompt": "be brief",
    "target": "a",
    "evalCaseId": "case",
    "attempt": 1,
    "settings": {
        "temperature": 0.5,
        "maxTokens": 5,
        "seed": 1,
        "stop": ["x"],
        "responseFormat": {"type": "json_object"},
        "tools": [{"type": "function"}],
        "toolChoice": "auto",
    },
    "metadata": {"key": "value"},
}

CONVERSATION: dict[str, object] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "provider": "a",
}

RESULT: dict[str, object] = {
    "output": [{"role": "assistant", "content": [{"type": "text", "text": "yes"}]}],
    "tokenUsage": {"input": 1, "output": 2, "cached": 3, "reasoning": 4},
    "target": "a",
    "model": "m",
    "finishReason": "stop",
    "attempts": 1,
    "cached": False,
    "replayed": False,
    "durationMs": 1.5,
    "queuedMs": 1,
    "callCount": 1,
    "maxCalls": 2,
}

FAULT: dict[str, object] = {
    "error": "no",
    "code": "unknown_target",
    "status": 400,
    "retryable": False,
    "charged": False,
    "retryAfterMs": 5,
    "availableTargets": ["a"],
}


def operations(other_session_id: str) -> dict[str, object]:
    """The questions of the metadata queue; what may change a session names the other one, and
    ``close`` can name none, so that it is not here."""
    return {
        "info": {},
        "open": {
            "defaultTarget": "a",
            "maxCalls": 5,
            "allowedTargets": ["a", "b"],
            "expiresInSeconds": 60.0,
            "deadlineSeconds": 30,
            "storeReplies": True,
            "label": "nightly",
        },
        "amend": {"sessionId": other_session_id, "maxCalls": 10, "state": "paused"},
        "reserve": {"requestIds": ["r1", "r2"], "deadline": IN_AN_HOUR},
        "release": {"requestIds": ["r1", "r2"]},
        "cancel": {"requestIds": ["r1", "r2"]},
        "list": {"cursor": "1790000000000.000000000000", "state": "open"},
        "show": {"sessionId": other_session_id},
    }


REGISTER: dict[str, object] = {
    "workerId": "w",
    "incarnation": "i",
    "targets": [{"name": "b", "provider": "mock", "model": "m", "judgeTarget": "a", "maxConcurrency": 5}],
}

HEARTBEAT: dict[str, object] = {"workerId": "w", "incarnation": "i", "pauses": {"b": 1_000}}


def admit_batch(token: str) -> dict[str, object]:
    """A batch of two: one in this token's name, one that the worker found a fault in."""
    item = {
        "token": token,
        "requestId": "r",
        "attemptId": "t",
        "target": "a",
        "bodySha256": "body",
        "deadline": IN_AN_HOUR,
    }
    return {"incarnation": "i", "items": [item, {**item, "attemptId": "u", "problem": FAULT}]}


def admit_reply(attempt_id: str) -> dict[str, object]:
    """The ledger's word on an attempt: a grant."""
    grant = {
        "attemptId": attempt_id,
        "attempt": 1,
        "deadline": IN_AN_HOUR,
        "callCount": 1,
        "maxCalls": 2,
        "storeReplies": True,
    }
    replay_item = {"attemptId": "another", "replay": RESULT}
    fault_item = {"attemptId": "one more", "fault": FAULT}
    return {"items": [grant, replay_item, fault_item], "held": ["another one"], "now": 1_790_000_000_000}


def cancellation(session_id: str) -> dict[str, object]:
    """Calls of which none runs."""
    return {"calls": [{"sessionId": session_id, "requestId": "unheard of"}, {"sessionId": "s", "requestId": "r"}]}


def settle_batch(session_id: str) -> dict[str, object]:
    """A batch of calls that nobody has heard of."""
    item = {"sessionId": session_id, "requestId": "unheard of", "attemptId": "unheard of", "outcome": "result"}
    return {
        "incarnation": "i",
        "items": [
            {**item, "reply": RESULT, "tokenUsage": RESULT["tokenUsage"]},
            {**item, "sessionId": "unheard of", "outcome": "charged", "fault": FAULT},
            {**item, "outcome": "never_sent"},
        ],
    }
