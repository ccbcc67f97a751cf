"""The stores of a run: its own, which has all that was asked, and the cache, where answers are looked up first."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import FaultReply, InvokeRequest, Result
from quintain.errors import BadRequest, BudgetExhausted, Fault
from quintain_runner.engine.recording import RUN_FACT, VERDICT_PREFIX, RecordedAnswers, RecordedRun
from quintain_runner.engine.run_settings import RunSettings
from quintain_runner.graders.base import is_in_doubt
from quintain_runner.plan.address import Answers, NumberedRequest, NumberedVerdict, address_of
from quintain_runner.results.answer_store import (
    ANSWERS_FILE_NAME,
    AnswerStore,
    AskingState,
    StoredAnswer,
    StoreUnusable,
)
from quintain_runner.results.cache_file import MAX_CACHE_BYTES, CacheSetting, open_cache
from quintain_runner.results.row import Row

#: How many answers are written to the cache in one transaction at most.
_MAX_BATCH: Final = 256

#: The size of the cache is looked at after so many of its transactions.
_WRITES_PER_PRUNING: Final = 100

#: How long the end of a run waits for the cache, in seconds.
_CLOSE_SECONDS: Final = 10.0


def _now_ms() -> int:
    return int(time.time() * 1000)


class CacheOfRun:
    """The cache as a run uses it: it is written by a thread, so that no run waits for it."""

    def __init__(self, setting: CacheSetting) -> None:
        self._reader = open_cache(setting.path)
        self._writer = open_cache(setting.path)
        # What this run itself was answered is asked again under the same request id, and counts once.
        self._before = _now_ms()
        self._since = 0 if setting.max_age_seconds is None else self._before - int(setting.max_age_seconds * 1000)
        self._queue: queue.SimpleQueue[StoredAnswer | str | None] = queue.SimpleQueue()
        #: Why nothing more is written.
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._write_all, name="cache", daemon=True)
        self._thread.start()

    def find(self, address: str, times: int) -> StoredAnswer | None:
        """Return an answer that is young enough, and note that it is used. Raises `StoreUnusable`."""
        if (found := self._reader.find(address, times, since=self._since, before=self._before)) is not None:
            self._put(address)
        return found

    def keep(self, answer: StoredAnswer) -> None:
        """Have an answer written."""
        self._put(answer)

    def finish(self) -> None:
        """Wait until all is written, but not for long."""
        self._queue.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def close(self) -> None:
        """Finish, and close the file."""
        self.finish()
        self._reader.close()
        if not self._thread.is_alive():
            self._writer.close()

    def _put(self, item: StoredAnswer | str) -> None:
        if self.failure is None:
            self._queue.put(item)

    def _write_all(self) -> None:
        is_over, writes = False, 0
        while not is_over:
            items = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(items) < _MAX_BATCH:
                    items.append(self._queue.get_nowait())
            is_over = None in items
            try:
                if self.failure is None:
                    used = [item for item in items if isinstance(item, str)]
                    answers = [item for item in items if isinstance(item, StoredAnswer)]
                    self._writer.write(answers, used, now=time.time())
                    writes += 1
                    if is_over or not writes % _WRITES_PER_PRUNING:
                        self._writer.prune(max_bytes=MAX_CACHE_BYTES)
            except StoreUnusable as error:
                self.failure = error.message


class RunAnswers(Answers):
    """Where a run looks for answers, and keeps them.

    ``fingerprints`` are those of the targets. The ``untold`` ones are not told which case they are asked about, and
    only answers of ``cacheable`` ones come from the cache. ``own`` is the run's own store, and ``earlier`` the same if
    it had answers before this command. ``warnings`` say why a store is not used.
    """

    def __init__(
        self,
        fingerprints: Mapping[str, str | None],
        *,
        untold: Collection[str],
        cacheable: Collection[str],
        own: AnswerStore | None = None,
        earlier: AnswerStore | None = None,
        cache: CacheOfRun | None = None,
    ) -> None:
        self._fingerprints, self._untold, self._cacheable = fingerprints, untold, cacheable
        self._own, self._earlier, self._cache = own, earlier, cache
        self.warnings = deque[str]()
        self._unwritten: deque[StoredAnswer] = deque()
        self.has_some = cache is not None or earlier is not None

    def find(self, asked: NumberedRequest) -> Result | None:
        """Look for an answer in the run's own store, then in the cache; see `Answers.find`."""
        fingerprint = self._fingerprints.get(asked.target)
        if not self.has_some or fingerprint is None or _is_continued(asked.request):
            return None
        address = self._address(asked, fingerprint)
        found = self._find_own(address, asked.times)
        is_own = found is not None and found.state is AskingState.ANSWERED
        if found is None and asked.target in self._cacheable:
            found = self._find_cached(address, asked.times)
        with contextlib.suppress(BadRequest):
            if found is not None and (result := Result.from_wire(found.reply)).continuation is None:
                return result.with_fields(cached=not is_own, replayed=is_own)
        return None

    def find_verdict(self, asked: NumberedVerdict) -> tuple[bytes, bool] | None:
        """Look for a verdict in the cache; see `Answers.find_verdict`."""
        if not asked.is_cacheable or asked.fingerprint is None:
            return None
        found = self._find_cached(asked.address, asked.times)
        return None if found is None else (found.reply, True)

    def keep_verdict(self, asked: NumberedVerdict, verdict: bytes, *, is_whole: bool) -> None:
        """Keep a verdict of a program in the run's own store, and one that others may use in the cache."""
        stored = StoredAnswer(
            address=asked.address,
            asking=asked.times,
            number=asked.number,
            target=f"{VERDICT_PREFIX}{asked.grader}",
            fingerprint=asked.fingerprint,
            request=asked.content,
            reply=verdict,
            state=AskingState.ANSWERED if is_whole else AskingState.UNUSABLE,
            answered_at=_now_ms(),
        )
        if self._own is not None:
            self._unwritten.append(stored)
        if self._cache is not None and is_whole and asked.is_cacheable and asked.fingerprint is not None:
            self._cache.keep(stored)

    def finish(self) -> None:
        """Wait until the cache has what the run gives it, and warn where it could not be written."""
        if self._cache is not None:
            self._cache.finish()
            if self._cache.failure is not None:
                self._give_up_cache(self._cache.failure)

    def write_run(self, recorded: RecordedRun) -> None:
        """Write what a replay needs to know of the run into its own store."""
        if self._own is not None:
            recorded = recorded.with_fields(untold=sorted(self._untold))
            with contextlib.suppress(StoreUnusable):
                self._own.write_fact(RUN_FACT, recorded.to_wire().decode())

    def _find_cached(self, address: str, times: int) -> StoredAnswer | None:
        if self._cache is None:
            return None
        if self._cache.failure is not None:
            self._give_up_cache(self._cache.failure)
            return None
        try:
            found = self._cache.find(address, times)
        except StoreUnusable as error:
            self._give_up_cache(error.message)
            return None
        if found is not None and self._own is not None:
            # The run's own store has all that its rows are made of.
            self._unwritten.append(found._replace(state=AskingState.CACHED))
        return found

    def _find_own(self, address: str, times: int) -> StoredAnswer | None:
        if self._earlier is None:
            return None
        try:
            return self._earlier.find(address, times)
        except StoreUnusable as error:
            self._earlier = None
            self.warnings.append(f"{error.message}; what it has is asked again")
            return None

    def holds(self, row: Row) -> bool:
        """Whether the answer of a row is found in the run's own store, so that the row need not keep it."""
        turns = [] if row.conversation is None else row.conversation.turns
        fingerprint = row.target_fingerprint
        return (
            self._earlier is not None
            and fingerprint is not None
            and fingerprint == self._fingerprints.get(row.target)
            and all(turn.continuation is None for turn in turns)
        )

    def keep(self, asked: NumberedRequest, outcome: Result | Fault, *, is_usable: bool) -> None:
        """Keep how a request ended in the run's own store, and a usable answer in the cache; see `Answers.keep`."""
        expected = self._fingerprints.get(asked.target)
        if isinstance(outcome, Result):
            state = AskingState.ANSWERED if is_usable else AskingState.UNUSABLE
            stored = self._stored(asked, outcome.target_fingerprint, outcome.to_wire(), state)
            # Of a conversation that its target keeps all turns are asked, or none.
            is_of_others = is_usable and outcome.target_fingerprint == expected and outcome.continuation is None
            if self._cache is not None and is_of_others and self._may_be_cached(asked):
                self._cache.keep(stored)
        elif isinstance(outcome, BudgetExhausted):
            return
        else:
            state = AskingState.IN_DOUBT if is_in_doubt(outcome) else AskingState.FAILED
            stored = self._stored(asked, expected, FaultReply.from_fault(outcome).to_wire(), state)
        if self._own is not None:
            self._unwritten.append(stored)

    def _stored(
        self, asked: NumberedRequest, fingerprint: str | None, reply: bytes, state: AskingState
    ) -> StoredAnswer:
        return StoredAnswer(
            address=self._address(asked, fingerprint),
            asking=asked.times,
            number=asked.number,
            target=asked.target,
            fingerprint=fingerprint,
            request=asked.request.to_wire(),
            reply=reply,
            state=state,
            answered_at=_now_ms(),
        )

    def write(self) -> None:
        """Write what was asked into the run's own store; in the thread that then writes the rows."""
        answers: list[StoredAnswer] = []
        while self._unwritten:
            answers.append(self._unwritten.popleft())
        if answers and self._own is not None:
            try:
                self._own.write(answers, now=time.time())
            except StoreUnusable as error:
                self._own = None
                self.warnings.append(f"{error.message}; the run goes on without a record of what was asked")

    def _may_be_cached(self, asked: NumberedRequest) -> bool:
        target = asked.target
        is_known = self._fingerprints.get(target) is not None
        return is_known and target in self._cacheable and not _is_continued(asked.request)

    def _address(self, asked: NumberedRequest, fingerprint: str | None) -> str:
        is_told = asked.target not in self._untold
        return address_of(asked.request, fingerprint, asked.number, sees_case=is_told)

    def _give_up_cache(self, why: str) -> None:
        self._cache = None
        self.warnings.append(f"{why}; the run goes on without the cache")


def _is_continued(request: InvokeRequest | ApiRequest) -> bool:
    """Whether a request goes on with a conversation that its target keeps."""
    return not isinstance(request, ApiRequest) and request.turn is not None and request.turn.continuation is not None


def _seal(store: AnswerStore) -> None:
    with contextlib.suppress(StoreUnusable):
        store.seal()


@contextlib.contextmanager
def open_answers(run: RunSettings, fingerprints: Mapping[str, str | None]) -> Iterator[RunAnswers | RecordedAnswers]:
    """Open the stores of a run; of one that cannot be used there is a warning, and the run goes on without it.

    Which targets may be cached says the configuration; of others that are called it is not known.
    """
    options, keeps_content = run.options, run.options.keeps_content
    targets = {} if run.config is None else run.config.targets
    if (recording := run.options.recording) is not None:
        yield RecordedAnswers(recording, fingerprints)
        return
    untold = frozenset(name for name, target in targets.items() if not target.sees_case)
    cacheable = frozenset(name for name, target in targets.items() if target.is_cacheable)
    setting = CacheSetting.of(options.cache, run.evaluation.spec.cache, run.env)
    with contextlib.ExitStack() as stack:
        own, earlier, cache, warnings = None, None, None, list[str]()
        if keeps_content:
            try:
                path = options.folder / ANSWERS_FILE_NAME
                own = stack.enter_context(contextlib.closing(AnswerStore.open(path)))
                stack.callback(_seal, own)
                if not own.is_empty:
                    earlier = stack.enter_context(contextlib.closing(AnswerStore.open(path)))
            except StoreUnusable as error:
                warnings.append(f"{error.message}; the run goes on without a record of what was asked")
        if setting is not None and not keeps_content:
            warnings.append("--no-content: the cache would keep questions and answers, and is not used")
        elif setting is not None:
            try:
                cache = stack.enter_context(contextlib.closing(CacheOfRun(setting)))
            except StoreUnusable as error:
                warnings.append(f"{error.message}; the run goes on without the cache")
            if unknown := sorted(fingerprints.keys() - targets.keys()):
                warnings.append(f"cache: {', '.join(unknown)} is not configured here, and is always asked")
        answers = RunAnswers(fingerprints, untold=untold, cacheable=cacheable, own=own, earlier=earlier, cache=cache)
        answers.warnings.extend(warnings)
        yield answers
