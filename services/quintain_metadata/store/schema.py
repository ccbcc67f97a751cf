"""The ledger's tables as numbered migrations, in SQL that SQLite and PostgreSQL share.

Times are milliseconds since the epoch on the store's clock. Counters are kept until their session is pruned, replies
for a day.
"""

from __future__ import annotations

from typing import Final

#: Migration N brings the schema from version N - 1 to N. Never edit one that was released: add another.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        # ``reserved``: how many calls a child session reserved; its parent is charged for them until the child ends.
        # ``opened_for``: the request id of its parent's call for whose agent the session was opened; otherwise null.
        # ``ignore_unsupported``: calls are made without the settings that a provider cannot honour, and not refused.
        # ``max_body_bytes``: the size of its largest request; null where it was opened without a limit of its own.
        # ``weight`` and ``priority``: its share of quotas; null where it has its parent's, or the default one.
        # Money is in picodollars (10^-12 US dollars). ``max_cost``: null where the session has no limit in money.
        # ``warn_at``: the millionths of it at which an event says so; null where nobody asks.
        # ``cost_spent``: what is known to be spent, at most what was reserved for it. ``cost_held``: reserved for tries
        # whose bill is unknown. ``cost_reserved``: reserved for tries that run. ``cost_excess``: what providers
        # reported beyond what was reserved. ``cost_unknown``: charged tries of unknown cost for which nothing was
        # reserved. ``cost_estimated``: tries for which an estimate was reserved.
        # ``tries``: requests that were sent to providers; ``unproven_tries`` of them failed, or were lost,
        # and may have been billed. ``grader``: the one whose calls are made under it.
        """CREATE TABLE session (
            id text PRIMARY KEY,
            token_sha256 bytea NOT NULL,
            parent_id text REFERENCES session (id),
            opened_for text,
            default_target text NOT NULL,
            allowed_targets text,
            max_calls bigint NOT NULL,
            used bigint NOT NULL DEFAULT 0,
            reserved bigint NOT NULL DEFAULT 0,
            state text NOT NULL,
            label text,
            deadline_ms bigint NOT NULL,
            max_body_bytes bigint,
            ignore_unsupported integer NOT NULL DEFAULT 0,
            store_replies integer NOT NULL,
            created_at bigint NOT NULL,
            expires_at bigint,
            tokens_input bigint NOT NULL DEFAULT 0,
            tokens_output bigint NOT NULL DEFAULT 0,
            tokens_cached bigint NOT NULL DEFAULT 0,
            tokens_cache_write bigint NOT NULL DEFAULT 0,
            tokens_cache_write_1h bigint NOT NULL DEFAULT 0,
            tokens_reasoning bigint NOT NULL DEFAULT 0,
            weight integer,
            priority text,
            max_cost bigint,
            warn_at integer,
            cost_spent bigint NOT NULL DEFAULT 0,
            cost_held bigint NOT NULL DEFAULT 0,
            cost_reserved bigint NOT NULL DEFAULT 0,
            cost_excess bigint NOT NULL DEFAULT 0,
            cost_unknown bigint NOT NULL DEFAULT 0,
            cost_estimated bigint NOT NULL DEFAULT 0,
            tries bigint NOT NULL DEFAULT 0,
            unproven_tries bigint NOT NULL DEFAULT 0,
            grader text,
            CHECK (0 <= used AND used <= max_calls),
            CHECK (0 <= cost_spent AND 0 <= cost_held AND 0 <= cost_reserved),
            CHECK (max_cost IS NULL OR cost_spent + cost_held + cost_reserved <= max_cost)
        )""",
        "CREATE INDEX session_parent ON session (parent_id)",
        "CREATE INDEX session_reserved ON session (expires_at) WHERE reserved > 0",
        # ``counted_tries`` of the ``max_tries`` of its target failed; the next one begins at ``not_before`` or later.
        # ``uncounted_attempts``: those that were lost with a worker that ran other calls too.
        # ``cancelled_at``: when the caller cancelled it. ``joined_until``: until when another delivery waits for its
        # answer. The tokens are null where its provider reported none. ``cost``: what is reserved for the attempt that
        # holds it, or held it last, until its bill is known: in the session's ``cost_reserved`` while the call runs,
        # else in ``cost_held``. ``lost``: that attempt has ended, as far as is known, and has not been reported. The
        # counters of its attempts, lost ones as one try that may have been billed, are those of the session: what is
        # ``billed``, ``held`` and ``unknown``. ``held_for``: the HTTP status or the code of the last such try.
        """CREATE TABLE call (
            session_id text NOT NULL REFERENCES session (id),
            request_id text NOT NULL,
            body_sha256 text NOT NULL,
            target text NOT NULL,
            state text NOT NULL,
            attempts integer NOT NULL,
            uncounted_attempts integer NOT NULL DEFAULT 0,
            attempt_id text,
            incarnation text,
            deadline bigint NOT NULL,
            call_count bigint NOT NULL,
            fault text,
            cancelled_at bigint,
            joined_until bigint NOT NULL DEFAULT 0,
            tokens_input bigint,
            tokens_output bigint,
            tokens_cached bigint,
            tokens_cache_write bigint,
            tokens_cache_write_1h bigint,
            tokens_reasoning bigint,
            cost bigint NOT NULL DEFAULT 0,
            lost integer NOT NULL DEFAULT 0,
            counted_tries bigint NOT NULL DEFAULT 0,
            not_before bigint NOT NULL DEFAULT 0,
            grader text,
            tries bigint NOT NULL DEFAULT 0,
            unproven_tries bigint NOT NULL DEFAULT 0,
            billed bigint NOT NULL DEFAULT 0,
            held bigint NOT NULL DEFAULT 0,
            unknown bigint NOT NULL DEFAULT 0,
            held_for text,
            created_at bigint NOT NULL,
            updated_at bigint NOT NULL,
            PRIMARY KEY (session_id, request_id)
        )""",
        # Answered calls, nearly all of them, have no entry by their state.
        "CREATE INDEX call_by_state ON call (session_id, state) WHERE state <> 'committed' OR fault IS NOT NULL",
        "CREATE INDEX call_unfinished ON call (deadline) WHERE state IN ('reserved', 'running')",
        "CREATE INDEX call_running ON call (incarnation, target) WHERE state = 'running'",
        # The number of running calls of each target at each worker.
        """CREATE VIEW running_calls AS SELECT target, incarnation, count(*) AS running FROM call
            WHERE state = 'running' GROUP BY incarnation, target""",
        # The state of an attempt that holds its call no more: proven (unbilled) or unproven; retried (unproven, and
        # not counted); or void (never to run, or retried and unbilled). One that holds its call, or held it last, has
        # a row only where it is proven, void or retried. ``cost``: what the session holds for it until its bill is
        # known.
        """CREATE TABLE attempt (
            id text PRIMARY KEY,
            session_id text NOT NULL,
            request_id text NOT NULL,
            number integer NOT NULL,
            incarnation text NOT NULL,
            state text NOT NULL,
            at bigint NOT NULL,
            cost bigint NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX attempt_of_call ON attempt (session_id, request_id)",
        # ``drain``: the state of its drain, as a rank of `leases.DRAIN_RANKS`. ``lost_calls``: how many calls it ran
        # when the first of them was found lost with it; null where none was. ``user_name``: of the broker.
        """CREATE TABLE worker (
            incarnation text PRIMARY KEY,
            worker_id text NOT NULL,
            lease_until bigint NOT NULL,
            drain integer NOT NULL DEFAULT 0,
            lost_calls bigint,
            user_name text
        )""",
        # The targets that workers of a user of the broker may serve, as JSON; of a user without a row, any.
        """CREATE TABLE broker_user (
            name text PRIMARY KEY,
            targets text NOT NULL
        )""",
        # ``fingerprint``: of the configuration of the worker that registered it last; null where that computes none.
        # ``position``: the order in which targets were first registered. ``timeout_ms``: how long its calls may take;
        # null where it has no limit of its own. ``cost_terms``: what its calls can cost at most, as JSON.
        # ``bound_excess``: by how much more a try cost than was reserved by these terms; 0 where none did.
        # ``keeps_conversation``: 0 where it takes one question, and no turns.
        """CREATE TABLE target (
            name text PRIMARY KEY,
            provider text NOT NULL,
            model text,
            judge_target text,
            max_concurrency integer NOT NULL,
            fingerprint text,
            position bigint NOT NULL DEFAULT 0,
            paused_until bigint NOT NULL DEFAULT 0,
            registered_at bigint NOT NULL,
            timeout_ms bigint,
            cost_terms text,
            bound_excess bigint NOT NULL DEFAULT 0,
            keeps_conversation integer NOT NULL DEFAULT 1
        )""",
        # With which fingerprint a worker serves a target, since when, and how many of its calls it runs at a time. The
        # quota that it registers for the target, with its terms as JSON; null where it has none. What the target's
        # calls can cost at most, as JSON.
        """CREATE TABLE served_target (
            incarnation text NOT NULL,
            target text NOT NULL,
            fingerprint text,
            since bigint NOT NULL,
            group_slots integer NOT NULL,
            quota_id text,
            quota_name text,
            quota_terms text,
            cost_terms text,
            PRIMARY KEY (incarnation, target)
        )""",
        # What an administrator set of a quota, as JSON.
        """CREATE TABLE quota (
            id text PRIMARY KEY,
            settings text NOT NULL,
            set_at bigint NOT NULL
        )""",
        # What the metadata service has learned of a quota at ``saved_at``, for the next one, as JSON.
        """CREATE TABLE quota_state (
            quota_id text PRIMARY KEY,
            saved_at bigint NOT NULL,
            state text NOT NULL
        )""",
    ),
)

#: Statements of a migration on SQLite only, by its number.
SQLITE_STATEMENTS: Final[dict[int, tuple[str, ...]]] = {
    1: (
        # In the order in which replies are written, which is that in which they expire; read by the call's last change.
        """CREATE TABLE reply (
            session_id text NOT NULL,
            request_id text NOT NULL,
            body bytea NOT NULL,
            expires_at bigint NOT NULL,
            PRIMARY KEY (expires_at, session_id, request_id)
        ) WITHOUT ROWID""",
    ),
}

#: Statements of a migration on PostgreSQL only, by its number.
POSTGRES_STATEMENTS: Final[dict[int, tuple[str, ...]]] = {
    1: (
        """CREATE TABLE reply (
            session_id text NOT NULL,
            request_id text NOT NULL,
            body bytea NOT NULL,
            expires_at bigint NOT NULL,
            PRIMARY KEY (session_id, request_id)
        )""",
        "CREATE INDEX reply_expiry ON reply (expires_at)",
        # The one row of the metadata service that leads: how often another one took over, and until when it leads.
        "CREATE TABLE leader (epoch bigint NOT NULL, lease_until bigint NOT NULL)",
        "INSERT INTO leader (epoch, lease_until) VALUES (0, 0)",
        # These rows are updated with every call. Free space on their pages keeps the row versions there (HOT).
        "ALTER TABLE session SET (fillfactor = 50)",
    ),
}

SCHEMA_VERSION: Final = len(MIGRATIONS)
