"""An agent that calls models under its caller's budget: the example, in processes of its own, called both ways."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quintain
from quintain.remote.child_session import ChildSessionPolicy
from quintain.remote.factory import RemoteFactory
from quintain.target import ControllableInjection, Event, EventResponse, ObservableEvent, SecurityDomainTag
from support.process_fleet import ProcessFleet, process_fleet

EXAMPLES = Path(__file__).parents[2] / "examples" / "targets"

CONFIG = """
targets:
  model: {{provider: mock, response: "I agree."}}
  panel:
    provider: target
    host: {name}
    query: verdict
    config: {{members: "4"}}
    child_session: {{targets: [model], max_calls: 3}}
"""

#: A session's whole token; its id alone may be shown.
#: The tags of `panel.py`.
PANEL_TAGS = [SecurityDomainTag("user"), SecurityDomainTag("agent")]

SECRET = re.compile(r"qtn_ses_\w{12}_\w{43}")


@pytest.fixture
def name() -> str:
    return f"panel-{secrets.token_hex(3)}"


@pytest.fixture
def fleet(broker_url: str, name: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG.format(name=name), targets=["model", "panel"]) as fleet:
        shutil.copy(EXAMPLES / "panel.py", fleet.folder)
        fleet.start("serve", "host", "panel:Panel", "--name", name, "-v").wait_for_output("ready  host")
        fleet.start_services("metadata", "worker")
        yield fleet


async def test_the_fourth_opinion_is_refused_by_name_and_by_a_controller(fleet: ProcessFleet, name: str) -> None:
    session = await asyncio.to_thread(fleet.open_session, "panel", 10)
    async with quintain.connect(fleet.broker_url, session.token) as target:
        said = await target.invoke("Is all well?")
        assert said.raw_text == "3 of 4 opinions: budget_exhausted"
        assert (await target.get_info()).call_count == 4

        terms = ChildSessionPolicy(targets=["model"], max_calls=2, token=session.token)
        with RemoteFactory(name, url=fleet.broker_url, tags=PANEL_TAGS, child_session=terms) as remote:
            shown, verdict, token = await drive_run(remote)
            # A controller is no call, and what its target called is two.
            assert (shown, verdict) == (["I agree."] * 2, "2 of 3 opinions: budget_exhausted")
            assert (await target.get_info()).call_count == 6
            await assert_session_closed(fleet, token)
            left_behind = remote.create()._session.token
        await assert_session_closed(fleet, left_behind)
    written = "".join(process.read_output() for process in fleet.processes)
    assert not SECRET.search(written)


async def drive_run(remote: RemoteFactory) -> tuple[list[Any], str, str]:
    """One run: what was shown, the verdict, and the token that the target was given."""
    shown: list[Any] = []

    def emit(event: Event) -> None:
        if isinstance(event, ObservableEvent):
            shown.append(event.content)

    async def send_event(event: Any) -> EventResponse:
        emit(event)
        return ControllableInjection(event=event, controllable=event.controllable, value="Is it?")

    target = remote.create()
    token = target._session.token
    assert token not in repr(target._session)
    await target.run(emit, send_event)
    verdict = target.query("verdict")
    await target.teardown()
    return shown, verdict, token


async def assert_session_closed(fleet: ProcessFleet, token: str) -> None:
    with pytest.raises(quintain.Unauthorized):
        async with quintain.connect(fleet.broker_url, token):
            pass
