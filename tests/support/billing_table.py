"""A page's table of failures, and a fleet whose targets all fail in one way: what is tried again, what is charged."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import quintain
from support.memory_fleet import memory_fleet
from support.model_server import ScriptedResponse, StreamedResponse, model_server

PAGES = Path(__file__).parents[2] / "docs"

Script = ScriptedResponse | StreamedResponse

#: The row of the calls that wait for their provider where they have a quota.
THROTTLED = "429"

QUESTION = quintain.InvokeRequest(question="x")


class Outcome(NamedTuple):
    """What a caller is told of a failed call, how often the provider was asked, and what the ledger counts."""

    code: str
    charged: bool | None
    tries: int
    committed: int
    refunded: int
    in_doubt: int


@dataclass(frozen=True)
class BillingTable:
    """By the failure: whether it is tried again, its fault, and whether it is charged."""

    rows: Mapping[str, tuple[str, str, str]]

    @classmethod
    def of_page(cls, page: str, heading: str) -> BillingTable:
        """The table of a page whose heading begins so."""
        lines = (PAGES / page).read_text().partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return cls({failure: (again, fault.strip("`"), charged) for failure, again, fault, charged in cells})

    def outcome_of(self, row: str) -> Outcome:
        """What the page says of a call to a target with two tries."""
        again, code, charged = self.rows[row]
        counted = [int(charged == each) for each in ("yes", "no", "yes, in doubt")]
        return Outcome(code, charged != "no", 2 if again.startswith("yes") else 1, *counted)

    def check(self, row: str, ended: Outcome, *, is_reached: bool, has_quota: bool, name: str) -> None:
        """Assert that a call has ended as the page says."""
        wanted = self.outcome_of(row)
        if not is_reached:
            wanted = wanted._replace(tries=0)
        if row == THROTTLED and has_quota:
            # It waits until its deadline, uncounted, and its reservation ends: there is no charge to give back.
            assert ended.tries > 2
            wanted = wanted._replace(tries=ended.tries, refunded=0)
        assert ended == wanted, name


@dataclass(frozen=True, kw_only=True)
class FailingTargets:
    """Targets that all ask one provider: their configuration by its URL, and the field of a request with their name."""

    described: Callable[[str], Mapping[str, object]]
    field: str
    streamed: frozenset[str] = frozenset()

    async def outcomes(
        self,
        folder: Path,
        fails: Callable[[str], Script] | None,
        *,
        request: quintain.InvokeRequest = QUESTION,
        deadline_seconds: float = 60.0,
    ) -> dict[str, Outcome]:
        """Let a call to each target fail so, each in a session of its own; None is a provider that nobody reaches."""
        async with model_server() as provider:
            if fails is not None:
                provider.response_for = lambda received: fails(str(received.body[self.field]))
            targets = self.described(provider.url if fails is not None else unused_url())
            async with memory_fleet(folder, yaml.safe_dump({"targets": dict(targets)})) as fleet:

                async def outcome(name: str) -> Outcome:
                    session = await fleet.open_session(name)
                    on_chunk = (lambda _: None) if name in self.streamed else None
                    async with fleet.client_of(session) as client:
                        with pytest.raises(quintain.Fault) as caught:
                            await client.send(request, deadline_seconds=deadline_seconds, on_chunk=on_chunk)
                        async with asyncio.timeout(20):
                            while (info := await client.get_info()).running + info.reserved:
                                await asyncio.sleep(0.02)
                    tries = sum(json.loads(received.raw)[self.field] == name for received in provider.requests)
                    fault = caught.value
                    return Outcome(fault.code, fault.charged, tries, info.committed, info.refunded, info.in_doubt)

                return dict(zip(targets, await asyncio.gather(*map(outcome, targets)), strict=True))


def refusal(code: int, body: Mapping[str, object], **headers: str) -> ScriptedResponse:
    """An answer with this status; a header's name has ``_`` for ``-``."""
    return ScriptedResponse(
        status=code, body=dict(body), headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def unused_url() -> str:
    """A URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"
