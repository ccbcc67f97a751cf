"""A run that is made again from a recording: its session tells what the recorded one told, and nobody is called."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from quintain.client.client import Client
from quintain.client.transport import BatchItem, InvokeCall
from quintain.contracts.fleet import QuotaList
from quintain.contracts.invoke import InvokeRequest, Result
from quintain.contracts.session import CallsCancelled, GetInfo, Info
from quintain.errors import ConfigError, Fault
from quintain.routes import CANCEL, INFO, QUOTAS, Route
from quintain.timings import Clock
from quintain_runner.engine.backend import Backend
from quintain_runner.engine.recording import Recording
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.engine.session import RunSession, RunSessions
from quintain_runner.report.summary import CostLimit


class _ReplayTransport:
    """Implements `Transport` for the session of a recording: it can be looked at, and called by nobody."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self.clock = recording, Clock()

    async def invoke(self, call: InvokeCall) -> Result:
        """Raise `ConfigError`: answers are looked up before."""
        raise ConfigError(f"a replay asks nobody, and was to ask {call.request.requested_target}")

    async def invoke_batch(self, items: Sequence[InvokeRequest | Fault], *, deadline_seconds: float) -> list[BatchItem]:
        """Raise `ConfigError`, as `invoke`."""
        raise ConfigError(f"a replay asks nobody, and was to ask {len(items)} questions in {deadline_seconds:.0f} s")

    async def call_route(self, route: Route[Any, Any], request: Any, *, timeout_seconds: float) -> Any:
        """Give the recorded session; nothing is reserved, opened or closed."""
        del timeout_seconds
        if route is INFO and isinstance(request, GetInfo):
            return self._info(usage=request.usage)
        if route is QUOTAS:
            return QuotaList(quotas=[], now=self.clock.now_ms())
        if route is CANCEL:
            return CallsCancelled(cancelled=0)
        raise ConfigError(f"a replay has no services: {route.name}")

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """Cancel nothing."""

    async def close(self) -> None:
        """Wait for nothing."""

    def _info(self, *, usage: bool) -> Info:
        info = self._recording.run.info
        return info if usage else info.with_fields(usage=None)


class _ReplaySessions(RunSessions):
    """The session of a recording in place of a run's own."""

    def __init__(self, run: RunSettings, backend: Backend, client: Client, recording: Recording) -> None:
        super().__init__(run, backend)
        self.client, self._recording = client, recording

    async def __aenter__(self) -> _ReplaySessions:
        """Open nothing."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close nothing."""

    async def open(self, *, most_calls: int, calls_in_rows: int) -> RunSession:
        """Give the recorded session; see `RunSessions.open`."""
        del most_calls, calls_in_rows
        session_id, where = self._recording.run.info.session_id, f"of the recording {self._recording.path}"
        return RunSession(client=self.client, session_id=session_id, calls_location=where, is_bounded=False)

    async def spent_parent(self) -> str | None:
        """Return None: no budget is spent."""
        return None

    async def spent_cost(self) -> CostLimit | None:
        """Return None: no budget is spent."""
        return None

    async def finish(self, *, has_open_trials: bool) -> None:
        """Note nothing."""


@contextlib.asynccontextmanager
async def open_replay(run: RunSettings, recording: Recording) -> AsyncIterator[tuple[Backend, RunSessions]]:
    """Open the services of a replay, which are none, and its session."""
    client = Client(_ReplayTransport(recording))

    @contextlib.asynccontextmanager
    async def connect_session(_: str) -> AsyncIterator[Client]:
        yield client

    backend = Backend(
        location=f"the recording {recording.path}: nobody is asked",
        gateway_url=None,
        admin=None,
        parent_token=None,
        connect_session=connect_session,
        client_of=lambda _: client,
    )
    yield backend, _ReplaySessions(run, backend, client, recording)
