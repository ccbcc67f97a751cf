"""From a hosted target's name to fresh instances of it, as if it were here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain.remote.child_session import ChildSessions, ChildTerms
from quintain.remote.line import Line, opened
from quintain.remote.pool import Pool
from quintain.remote.target import RemoteTarget
from quintain.settings import environment, read_settings
from quintain.target.codec import Codec, tags_of
from quintain.target.tags import TagBook
from quintain.target.vocabulary import OURS, Vocabulary
from quintain.timings import Timings


class RemoteFactory:
    """Fresh instances of a hosted target, in one vocabulary; their tags are the same objects for all of them."""

    def __init__(  # noqa: PLR0913 -- what `remote_factory` takes, and the vocabulary
        self,
        name: str,
        *,
        concurrency: int = 1,
        ahead: int | None = None,
        url: str | None = None,
        line: Line | None = None,
        tags: Iterable[Any] = (),
        vocabulary: Vocabulary = OURS,
        kind: type[RemoteTarget] = RemoteTarget,
        child_session: ChildTerms | None = None,
        timings: Timings | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self.concurrency = concurrency
        self.tags = TagBook(vocabulary.tag, tags)
        self._codec = Codec(vocabulary, self.tags)
        self._kind = kind
        # A line that was given is its giver's: to share with other factories, and to close.
        self._own_line = line is None
        settings = read_settings(environment())
        parent = None if child_session is None else child_session.token or settings.require_session_token()
        self._line = line or opened(url or settings.require_broker_url())
        self._sessions: ChildSessions | None = None
        if child_session is not None and parent is not None:
            self._sessions = ChildSessions(self._line.caller, parent, child_session)
        most_ahead = concurrency if ahead is None else ahead
        self._pool = Pool(self._line, name, most_ahead, timings=timings or settings.timings)
        self._pool.fill()
        self._by_name: dict[str, Any] | None = None

    def create(self) -> Any:
        """A fresh instance, from the leases made ahead. Raises what the target's own factory raised, and `NoAnswer`
        where no host has a free slot in time; with ``child_session`` also `ConfigError` and a `Fault`."""
        target = self._leased()
        if self._sessions is not None:
            try:
                target.open_session(self._sessions)
            except BaseException:
                self._line.call(target.teardown())
                raise
        return target

    def scope(self, *names: str) -> frozenset[Any]:
        """The tags of these names, as a scope; no package of the target's is needed here. Raises `ValueError`."""
        if self._by_name is None:
            target = self._leased()
            self._by_name = {tag.name: tag for tag in tags_of(target.security_domain)}
            self._line.call(target.teardown())
        unknown = [name for name in names if name not in self._by_name]
        if unknown:
            raise ValueError(f"No tag is named {', '.join(unknown)}; there are {', '.join(self._by_name)}")
        return frozenset(self._by_name[name] for name in names)

    def _leased(self) -> RemoteTarget:
        return self._kind(self._line, self._pool.take(), self._codec, self._pool.give_back)

    def close(self) -> None:
        """Give the leases up and close the connection, where it is this factory's own."""
        self._pool.close()
        if self._sessions is not None:
            self._line.call(self._sessions.close())
        if self._own_line:
            self._line.close()

    def __enter__(self) -> RemoteFactory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remote_factory(
    name: str, *, concurrency: int = 1, url: str | None = None, events: Iterable[type] = (), **more: Any
) -> RemoteFactory:
    """A hosted target's factory: `create()` gives a fresh instance, wherever its host runs.

    ``url`` is the broker's, ``QUINTAIN_BROKER_URL`` where it is not given; ``line`` an open connection to share with
    other factories. ``events`` are event and response classes of your own. ``tags`` are those that a scope here is
    made of, where it was not made by `RemoteFactory.scope`. ``ahead`` is how many leases are kept ready, as many as
    run at once where nothing is said; with 0 each is made when it is wanted, and `create` waits for it.
    ``child_session`` gives each instance a session to call models with, under ``QUINTAIN_SESSION_TOKEN``'s.
    Raises `BrokerUnavailable`, `BrokerRefused`.
    """
    return RemoteFactory(name, concurrency=concurrency, url=url, vocabulary=OURS.with_classes(events), **more)
