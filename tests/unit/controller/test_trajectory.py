"""The trajectory as text and as JSON; `tests/superred` has what it takes and gives, beside superred's own."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from quintain.controller.trajectory import MAX_SHOWN_CHARACTERS, Trajectory
from quintain.target import (
    Controllable,
    ControllableInjection,
    ControllablePostCallEvent,
    Observable,
    ObservableEvent,
    SecurityDomainTag,
)

USER, POST = SecurityDomainTag("user"), SecurityDomainTag("post")
LETTER, SCREEN = Controllable("letter", POST, "mail"), Observable("screen", USER)
BEGIN = datetime.fromisoformat("2026-01-01T10:00:00")


def trajectory_of(content: Any) -> Trajectory:
    trajectory = Trajectory(filtered_scope=frozenset({POST}))
    event = ControllablePostCallEvent(
        event_id="one", timestamp=BEGIN, controllable=LETTER, request="mail?", answer="none"
    )
    trajectory.emit(event)
    trajectory.emit(ControllableInjection(event=event, controllable=LETTER, value="a parcel"))
    shown = BEGIN + timedelta(seconds=1.25)
    trajectory.emit(ObservableEvent(event_id="two", timestamp=shown, observable=SCREEN, content=content))
    return trajectory


def test_its_json_has_every_field_and_the_event_of_each_response() -> None:
    event, response, observation = json.loads(trajectory_of({"when": BEGIN, 1: (2,)}).to_json())
    assert event == {
        "kind": "event",
        "type": "ControllablePostCallEvent",
        "event_id": "one",
        "timestamp": "2026-01-01T10:00:00",
        "security_domain": "post",
        "controllable": {"name": "letter", "security_domain": "post", "description": "mail", "value_type": "text"},
        "request": "mail?",
        "answer": "none",
    }
    assert response == {
        "kind": "response",
        "type": "ControllableInjection",
        "event_id": "one",
        "controllable": "letter",
        "value": "a parcel",
    }
    assert observation["content"] == {"when": "2026-01-01T10:00:00", "1": [2]}


def test_a_scope_shows_and_writes_only_what_it_sees(capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = trajectory_of("seen by the user")
    assert [item["event_id"] for item in json.loads(trajectory.filtered.to_json())] == ["one", "one"]
    trajectory.filtered.show()
    assert "seen by the user" not in capsys.readouterr().out


def test_it_is_shown_in_lines_that_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    trajectory_of("two\nlines\x1b[2J \u202e" + "x" * MAX_SHOWN_CHARACTERS).show()
    event, response, observation = capsys.readouterr().out.splitlines()
    assert event == "    0.00 s [post] letter: mail? -> none"
    assert response.strip() == "[post] letter <- ControllableInjection: a parcel"
    assert observation.startswith(r"    1.25 s [user] screen: two\nlines\x1b[2J \u202exxx")
    assert observation.endswith("characters more)")


def test_a_trajectory_without_a_scope_has_no_view() -> None:
    with pytest.raises(RuntimeError, match="filtered_scope"):
        _ = Trajectory().filtered
