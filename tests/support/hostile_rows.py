"""Rows whose every text tries to be more than text: markup, scripts, terminal escapes, marks of direction."""

from __future__ import annotations

from quintain.contracts.invoke import ChatMessage, OutputMessage, ToolCall
from quintain_runner.results.row import Answer, Check, GraderRow, Row, RowCase, RowStatus
from support.results_folder import MADE_OF

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\x9b2J\u202eright\u2066 {{ 7*7 }} javascript:x"
)


def hostile_row(case_id: str = HOSTILE) -> Row:
    """A row with hostile text in every field that a model, a grader or a dataset fills."""
    grader = GraderRow(
        score=0.0,
        passed=False,
        reason=HOSTILE,
        checks=[Check(text=HOSTILE, passed=False, reason=HOSTILE, evidence=HOSTILE)],
        details={HOSTILE: HOSTILE},
        request_id=HOSTILE,
    )
    call = ToolCall(id=HOSTILE, name=HOSTILE, arguments=HOSTILE)
    image = {"type": "image_url", "image_url": {"url": f"https://evil.example/{HOSTILE}"}}
    return Row(
        fingerprints=MADE_OF,
        case_id=case_id,
        target="bot",
        repeat=1,
        status=RowStatus.GRADED,
        case=RowCase(
            messages=[ChatMessage(role="user", content=[{"type": "text", "text": HOSTILE}, image])],
            system_prompt=HOSTILE,
            expected=HOSTILE,
        ),
        output=HOSTILE,
        answer=Answer(request_id=HOSTILE, model=HOSTILE, messages=[OutputMessage(content=HOSTILE, tool_calls=[call])]),
        score=0.0,
        graders={HOSTILE: grader},
        stale=[HOSTILE],
        stale_kept=True,
    )
