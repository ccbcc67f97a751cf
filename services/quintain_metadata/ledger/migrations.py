"""The ledger's tables as numbered migrations, in SQL that SQLite and PostgreSQL share.

Times are milliseconds since the epoch on the store's clock. Counters are kept forever, replies are not.
"""

from __future__ import annotations

from typing import Final

#: How long replies are stored, in milliseconds.
REPLY_RETENTION_MS: Final = 24 * 60 * 60_000

#: Migration N brings the schema from version N - 1 to N. Never edit one that was released: add another.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE session (
            id text PRIMARY KEY,
            token_sha256 bytea NOT NULL,
            parent_id text REFERENCES session (id),
            default_target text NOT NULL,
            allowed_targets text,
            max_calls bigint NOT NULL,
            used bigint NOT NULL DEFAULT 0,
            state text NOT NULL,
            label text,
            deadline_ms bigint NOT NULL,
            store_replies integer NOT NULL,
            created_at bigint NOT NULL,
            expires_at bigint,
            tokens_input bigint NOT NULL DEFAULT 0,
            tokens_output bigint NOT NULL DEFAULT 0,
            tokens_cached bigint NOT NULL DEFAULT 0,
            tokens_reasoning bigint NOT NULL DEFAULT 0,
            CHECK (0 <= used AND used <= max_calls)
        )""",
        "CREATE INDEX session_parent ON session (parent_id)",
        """CREATE TABLE call (
            session_id text NOT NULL REFERENCES session (id),
            request_id text NOT NULL,
            body_sha256 text NOT NULL,
            target text NOT NULL,
            state text NOT NULL,
            attempts integer NOT NULL,
            attempt_id text,
            incarnation text,
            deadline bigint NOT NULL,
            call_count bigint NOT NULL,
            fault text,
            created_at bigint NOT NULL,
            updated_at bigint NOT NULL,
            PRIMARY KEY (session_id, request_id)
        )""",
        "CREATE INDEX call_by_state ON call (session_id, state)",
        "CREATE INDEX call_running ON call (target) WHERE state = 'running'",
        "CREATE INDEX call_unfinished ON call (deadline) WHERE state IN ('reserved', 'running')",
        # The state of each attempt: running, proven (unbilled), unproven, or void (never to run). Since migration 14
        # one that holds its call, or held it last, has a row only where it is proven or void.
        """CREATE TABLE attempt (
            id text PRIMARY KEY,
            session_id text NOT NULL,
            request_id text NOT NULL,
            number integer NOT NULL,
            incarnation text NOT NULL,
            state text NOT NULL,
            at bigint NOT NULL
        )""",
        "CREATE INDEX attempt_of_call ON attempt (session_id, request_id)",
        """CREATE TABLE reply (
            session_id text NOT NULL,
            request_id text NOT NULL,
            body bytea NOT NULL,
            expires_at bigint NOT NULL,
            PRIMARY KEY (session_id, request_id)
        )""",
        "CREATE INDEX reply_expiry ON reply (expires_at)",
        "CREATE TABLE worker (incarnation text PRIMARY KEY, worker_id text NOT NULL, lease_until bigint NOT NULL)",
        """CREATE TABLE target (
            name text PRIMARY KEY,
            provider text NOT NULL,
            model text,
            judge_target text,
            max_concurrency integer NOT NULL,
            registered_at bigint NOT NULL
        )""",
    ),
    (
        # When the caller cancelled the call; and until when another delivery of it is known to wait for its answer.
        "ALTER TABLE call ADD COLUMN cancelled_at bigint",
        "ALTER TABLE call ADD COLUMN joined_until bigint NOT NULL DEFAULT 0",
        "ALTER TABLE target ADD COLUMN paused_until bigint NOT NULL DEFAULT 0",
        "CREATE INDEX call_taken_back ON call (incarnation) WHERE state = 'running' AND cancelled_at IS NOT NULL",
    ),
    (
        # The call's token usage, where its provider reported it; null otherwise, and before this migration.
        "ALTER TABLE call ADD COLUMN tokens_input bigint",
        "ALTER TABLE call ADD COLUMN tokens_output bigint",
        "ALTER TABLE call ADD COLUMN tokens_cached bigint",
    ),
    (
        # The state of the worker's drain, as a rank of `leases.DRAIN_RANKS`.
        "ALTER TABLE worker ADD COLUMN drain integer NOT NULL DEFAULT 0",
        # Every admit counts the running calls of its target, per worker: this index alone answers that.
        "DROP INDEX call_running",
        "CREATE INDEX call_running ON call (target, incarnation) WHERE state = 'running'",
    ),
    (
        # Of the configuration of the worker that registered it last; null where that computes none.
        "ALTER TABLE target ADD COLUMN fingerprint text",
    ),
    (
        # How many calls a child session reserved: its parent is charged for them until the child ends.
        "ALTER TABLE session ADD COLUMN reserved bigint NOT NULL DEFAULT 0",
        "CREATE INDEX session_reserved ON session (expires_at) WHERE reserved > 0",
    ),
    (
        # With which fingerprint a worker serves a target, and since when; null where it computes none.
        """CREATE TABLE served_target (
            incarnation text NOT NULL,
            target text NOT NULL,
            fingerprint text,
            since bigint NOT NULL,
            PRIMARY KEY (incarnation, target)
        )""",
    ),
    (
        # The number of running calls of each target at each worker. Triggers maintain it, because services of an older
        # release may still write to the same database.
        """CREATE TABLE running_calls (
            target text NOT NULL,
            incarnation text NOT NULL,
            running bigint NOT NULL,
            PRIMARY KEY (target, incarnation)
        )""",
        """INSERT INTO running_calls (target, incarnation, running)
            SELECT target, incarnation, count(*) FROM call WHERE state = 'running' GROUP BY target, incarnation""",
    ),
    (
        # Whether calls are made without the settings that a provider cannot honour, in place of being refused.
        "ALTER TABLE session ADD COLUMN ignore_unsupported integer NOT NULL DEFAULT 0",
    ),
    (
        # The size of the largest request of a session; null where it was opened without a limit of its own.
        "ALTER TABLE session ADD COLUMN max_body_bytes bigint",
    ),
    (
        # The order in which targets were first registered; those of before have 0, and are ordered by name.
        "ALTER TABLE target ADD COLUMN position bigint NOT NULL DEFAULT 0",
    ),
    (
        # How many calls of the target the worker runs at a time; null where it reads no groups of calls.
        "ALTER TABLE served_target ADD COLUMN group_slots integer",
    ),
    (
        # The bodies of requests that are larger than a message. Their bytes are in a folder, or in content_piece.
        """CREATE TABLE content (
            id text PRIMARY KEY,
            session_id text NOT NULL REFERENCES session (id),
            request_id text NOT NULL,
            sha256 text NOT NULL,
            size bigint NOT NULL,
            complete integer NOT NULL,
            expires_at bigint NOT NULL,
            UNIQUE (session_id, request_id, sha256)
        )""",
        """CREATE TABLE content_piece (
            content_id text NOT NULL REFERENCES content (id) ON DELETE CASCADE,
            number integer NOT NULL,
            data bytea NOT NULL,
            PRIMARY KEY (content_id, number)
        )""",
    ),
    (
        # What `running_calls` counts needs no index; and committed calls, nearly all of them, no entry by their state.
        "DROP INDEX call_running",
        "DROP INDEX call_by_state",
        "CREATE INDEX call_by_state ON call (session_id, state) WHERE state <> 'committed'",
    ),
    (
        # Whether the worker reads proofs of calls: 1 or 0; null where its release does not say it.
        "ALTER TABLE served_target ADD COLUMN reads_proofs integer",
        # When a call of the session last carried its token and no proof; null if none did, and before this migration.
        "ALTER TABLE session ADD COLUMN token_sent_at bigint",
        # The request id of its parent's call for whose agent the session was opened; null for any other session.
        "ALTER TABLE session ADD COLUMN opened_for text",
    ),
)

#: Adds the last parameter to the number of running calls of a target at a worker.
COUNT_RUNNING_CALLS_SQL: Final = (
    "INSERT INTO running_calls (target, incarnation, running) VALUES (?, ?, ?)"
    " ON CONFLICT (target, incarnation) DO UPDATE SET running = running_calls.running + excluded.running"
)

_COUNT_STARTED = "ON CONFLICT (target, incarnation) DO UPDATE SET running = running_calls.running + 1"
_COUNT_ENDED = (
    "UPDATE running_calls SET running = running - 1 WHERE target = old.target AND incarnation = old.incarnation"
)

#: Statements of a migration on SQLite only, by its number.
SQLITE_STATEMENTS: Final[dict[int, tuple[str, ...]]] = {
    8: (
        f"""CREATE TRIGGER call_started AFTER INSERT ON call WHEN new.state = 'running' BEGIN
            INSERT INTO running_calls VALUES (new.target, new.incarnation, 1) {_COUNT_STARTED};
        END""",
        f"""CREATE TRIGGER call_changed AFTER UPDATE OF state, target, incarnation ON call
            WHEN (old.state = 'running' OR new.state = 'running') AND
                (old.state <> new.state OR old.target <> new.target OR old.incarnation IS NOT new.incarnation)
        BEGIN
            {_COUNT_ENDED} AND old.state = 'running';
            INSERT INTO running_calls SELECT new.target, new.incarnation, 1 WHERE new.state = 'running'
                {_COUNT_STARTED};
        END""",
    ),
    14: (
        # No other release writes to the file: the ledger counts by itself (`RunningCallsChanged`).
        "DROP TRIGGER call_started",
        "DROP TRIGGER call_changed",
        # In the order in which replies are written, which is that in which they expire; read by the call's last change.
        """CREATE TABLE reply_by_expiry (
            session_id text NOT NULL,
            request_id text NOT NULL,
            body bytea NOT NULL,
            expires_at bigint NOT NULL,
            PRIMARY KEY (expires_at, session_id, request_id)
        ) WITHOUT ROWID""",
        f"""INSERT INTO reply_by_expiry SELECT session_id, request_id, body, call.updated_at + {REPLY_RETENTION_MS}
            FROM reply JOIN call USING (session_id, request_id) ORDER BY 4, 1, 2""",
        "DROP TABLE reply",
        "ALTER TABLE reply_by_expiry RENAME TO reply",
    ),
}

#: Statements of a migration on PostgreSQL only, by its number.
POSTGRES_STATEMENTS: Final[dict[int, tuple[str, ...]]] = {
    # The row of a busy session is updated with every call. Free space on its page keeps the row versions there (HOT).
    1: ("ALTER TABLE session SET (fillfactor = 50)",),
    8: (
        "ALTER TABLE running_calls SET (fillfactor = 10)",
        f"""CREATE FUNCTION count_running_calls() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE' THEN
                {_COUNT_ENDED} AND old.state = 'running';
            END IF;
            IF new.state = 'running' THEN
                INSERT INTO running_calls VALUES (new.target, new.incarnation, 1) {_COUNT_STARTED};
            END IF;
            RETURN NULL;
        END $$""",
        """CREATE TRIGGER call_started AFTER INSERT ON call FOR EACH ROW WHEN (new.state = 'running')
            EXECUTE FUNCTION count_running_calls()""",
        """CREATE TRIGGER call_changed AFTER UPDATE ON call FOR EACH ROW
            WHEN ((old.state = 'running' OR new.state = 'running') AND
                (old.state, old.target, old.incarnation) IS DISTINCT FROM (new.state, new.target, new.incarnation))
            EXECUTE FUNCTION count_running_calls()""",
    ),
    # Bodies of requests are mostly base64 of compressed data, which cannot be compressed further.
    13: ("ALTER TABLE content_piece ALTER COLUMN data SET STORAGE EXTERNAL",),
    14: (
        # A service of an older release takes an attempt without a row for one that was not granted, and gives each that
        # it grants a row itself: this one comes last, at the commit.
        """CREATE FUNCTION insert_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO attempt (id, session_id, request_id, number, incarnation, state, at) VALUES (new.attempt_id,
                new.session_id, new.request_id, new.attempts, new.incarnation, 'running', new.updated_at)
                ON CONFLICT DO NOTHING;
            RETURN NULL;
        END $$""",
        """CREATE CONSTRAINT TRIGGER attempt_granted AFTER INSERT OR UPDATE OF attempt_id ON call
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.attempt_id IS NOT NULL)
            EXECUTE FUNCTION insert_attempt()""",
    ),
}

SCHEMA_VERSION: Final = len(MIGRATIONS)
