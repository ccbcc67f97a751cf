"""An agent that calls models under its caller's budget: the example, in processes of its own, called both ways."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
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
  clerk:
    provider: target
    host: {name}-clerk
    child_session: {{targets: [model], max_calls: 8}}
"""

#: A hosted agent, whose client is made when it is imported. It says where it calls, and what came of each call.
CLERK = """
import json, os, urllib.error, urllib.request

URL, KEY = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]

def ask():
    body = json.dumps({"model": "model", "messages": [{"role": "user", "content": "Well?"}]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + KEY}
    try:
        with urllib.request.urlopen(urllib.request.Request(URL, body, headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code

def agent(prompt: str) -> str:
    return json.dumps([URL, [ask() for _ in range(int(prompt))]])
"""

#: The tags of `panel.py`.
PANEL_TAGS = [SecurityDomainTag("user"), SecurityDomainTag("agent")]

#: A session's whole token; its id alone may be shown.
SECRET = re.compile(r"qtn_ses_\w{12}_\w{43}")


@pytest.fixture(scope="module")
def name() -> str:
    return f"panel-{secrets.token_hex(3)}"


@pytest.fixture(scope="module")
def fleet(broker_url: str, name: str) -> Iterator[ProcessFleet]:
    with process_fleet(broker_url, CONFIG.format(name=name), targets=["model", "panel", "clerk"]) as fleet:
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
        async with quintain.lease(name, url=fleet.broker_url, child_session=terms) as leased:
            await leased.run()
            assert await leased.query("verdict") == "2 of 3 opinions: budget_exhausted"
        assert (await target.get_info()).call_count == 8
    written = "".join(process.read_output() for process in fleet.processes)
    assert not SECRET.search(written)


async def test_a_hosted_agent_calls_models_by_the_url_of_its_slot_within_the_limits_of_its_call(
    fleet: ProcessFleet, name: str
) -> None:
    (fleet.folder / "clerk.py").write_text(CLERK)
    gateway = fleet.start("serve", "gateway", "--port", "0", "--json")
    gateway.wait_for_output('"url"')
    (url,) = re.findall(r'"url": ?"([^"]+)"', gateway.read_output())
    options = ("--name", f"{name}-clerk", "--gateway", url, "--slots", "2")
    fleet.start("serve", "host", "clerk:agent", *options).wait_for_output("ready  host")
    session = await asyncio.to_thread(fleet.open_session, "clerk", 50)
    async with quintain.connect(fleet.broker_url, session.token) as target:
        # In both slots at once, and then again in one of them.
        both = await asyncio.gather(target.invoke("20"), target.invoke("20"))
        said = [json.loads(answer.raw_text) for answer in [*both, await target.invoke("9")]]
        assert [statuses for _, statuses in said] == [[200] * 8 + [402] * 12] * 2 + [[200] * 8 + [402]]
        assert (await target.get_info()).call_count == 3 * 9
    assert len({where for where, _ in said}) == 2
    async with aiohttp.ClientSession() as http, http.post(said[0][0], json={}) as between:
        assert between.status == 401
    assert not SECRET.search("".join(process.read_output() for process in fleet.processes))


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
