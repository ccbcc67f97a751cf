"""A page's table of failures, and a fleet whose targets all fail in one way: what is tried again, what is charged."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import quintain
from support.memory_fleet import memory_fleet
from support.model_server import ReceivedRequest, ScriptedResponse, StreamedResponse, model_server

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
            # It waits until its deadline, and its reservation ends: there is no charge to give back. How many tries
            # that is depends on how busy the machine is.
            assert ended.tries > 0
            wanted = wanted._replace(tries=ended.tries, refunded=0)
        assert ended == wanted, name


@dataclass(frozen=True, kw_only=True)
class Failing:
    """How a provider answers each kind of target; None is one that nobody reaches."""

    answer: Callable[[str], Script] | None
    request: quintain.InvokeRequest = QUESTION
    deadline_seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class FailingTargets:
    """Kinds of targets that all ask one provider: how one is configured, by its kind, its name and its URL, and the
    field of a request with its name."""

    kinds: Collection[str]
    described: Callable[[str, str, str], Mapping[str, object]]
    field: str
    streamed: frozenset[str] = frozenset()

    def outcomes(self, folder: Path, failures: Mapping[str, Failing]) -> dict[str, dict[str, Outcome]]:
        """Let a call to each kind of target fail in each way, in a session of its own: what came of it, by both."""
        return asyncio.run(self._outcomes(folder, list(failures.items())))

    async def _outcomes(self, folder: Path, failures: list[tuple[str, Failing]]) -> dict[str, dict[str, Outcome]]:
        names = {
            f"{kind}-{number}": (kind, failing) for number, (_, failing) in enumerate(failures) for kind in self.kinds
        }

        def answer(received: ReceivedRequest) -> Script:
            kind, failing = names[str(received.body[self.field])]
            return failing.answer(kind)

        async with model_server() as provider:
            provider.response_for, nowhere = answer, unused_url()
            targets = {
                name: self.described(kind, name, nowhere if failing.answer is None else provider.url)
                for name, (kind, failing) in names.items()
            }
            async with memory_fleet(folder, yaml.safe_dump({"targets": targets})) as fleet:

                async def ask(name: str) -> tuple[str, str, bool | None, quintain.Info]:
                    kind, failing = names[name]
                    session = await fleet.open_session(name, allowed_targets=[name])
                    on_chunk = (lambda _: None) if kind in self.streamed else None
                    async with fleet.client_of(session) as client:
                        with pytest.raises(quintain.Fault) as caught:
                            await client.send(
                                failing.request, deadline_seconds=failing.deadline_seconds, on_chunk=on_chunk
                            )
                        async with asyncio.timeout(20):
                            while (info := await client.get_info()).running + info.reserved:
                                await asyncio.sleep(0.02)
                    return name, caught.value.code, caught.value.charged, info

                # Those with a short deadline come last: nothing else then keeps the processor from them.
                ended = list[tuple[str, str, bool | None, quintain.Info]]()
                for deadline in sorted({failing.deadline_seconds for _, failing in failures}, reverse=True):
                    ended += await asyncio.gather(
                        *(ask(name) for name, (_, failing) in names.items() if failing.deadline_seconds == deadline)
                    )
            tries = Counter(json.loads(received.raw)[self.field] for received in provider.requests)
        told = {
            name: Outcome(code, charged, tries[name], info.committed, info.refunded, info.in_doubt)
            for name, code, charged, info in ended
        }
        return {
            failure: {kind: told[f"{kind}-{number}"] for kind in self.kinds}
            for number, (failure, _) in enumerate(failures)
        }


def refusal(code: int, body: Mapping[str, object], **headers: str) -> ScriptedResponse:
    """An answer with this status; a header's name has ``_`` for ``-``."""
    return ScriptedResponse(
        status=code, body=dict(body), headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def unused_url() -> str:
    """A URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"http://127.0.0.1:{closed.getsockname()[1]}"
