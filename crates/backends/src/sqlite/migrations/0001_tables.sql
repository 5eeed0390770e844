-- All times are whole microseconds since 1970-01-01 UTC. To read one:
--   SELECT strftime('%Y-%m-%d %H:%M:%f', created_at / 1e6, 'unixepoch') FROM semel_outbox;
-- Needs SQLite 3.37 or later in every program that opens the file.

-- One row per event, inserted in the business transaction and never updated. A plain INSERT needs
-- aggregate_type, aggregate_id, event_type and payload; leave seq to the database.
CREATE TABLE semel_outbox (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    -- A UUID of version 7 unless the writer gives one.
    id              TEXT NOT NULL COLLATE NOCASE UNIQUE DEFAULT (
        printf('%08x-%04x',
            CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) >> 16,
            CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) & 65535)
        || '-7' || substr(lower(hex(randomblob(2))), 2)
        || '-' || substr('89ab', 1 + (random() & 3), 1) || substr(lower(hex(randomblob(2))), 2)
        || '-' || lower(hex(randomblob(6)))
    ) CHECK (
        id GLOB '????????-????-????-????-????????????'
        AND ltrim(id, '-0123456789abcdefABCDEF') = ''
    ),
    aggregate_type  TEXT NOT NULL CHECK (aggregate_type <> ''),
    aggregate_id    TEXT NOT NULL CHECK (aggregate_id <> ''),
    event_type      TEXT NOT NULL CHECK (event_type <> ''),
    payload         ANY  NOT NULL CHECK (typeof(payload) IN ('text', 'blob')),
    content_type    TEXT NOT NULL DEFAULT 'application/json',
    headers         TEXT NOT NULL DEFAULT '{}' CHECK (json_type(headers) = 'object'),
    -- Without one, the id is the key.
    idempotency_key TEXT CHECK (idempotency_key <> ''),
    created_at      INTEGER NOT NULL DEFAULT (
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000
    ),
    -- Not published before this time.
    available_at    INTEGER
) STRICT;

-- An event's own key or its id: no two events share one, however they were written.
CREATE UNIQUE INDEX semel_outbox_key ON semel_outbox (coalesce(idempotency_key, id));

-- How far each pipeline is: every event up to position, and those in the spans [first, last] of
-- ahead, is published or in semel_parked. Only the owner, who has the epoch, may change it.
CREATE TABLE semel_cursor (
    pipeline   TEXT NOT NULL PRIMARY KEY,
    position   INTEGER NOT NULL,
    ahead      TEXT NOT NULL DEFAULT '[]',
    -- The last event that was handed out when the row was written.
    handed_out INTEGER NOT NULL DEFAULT 0,
    epoch      INTEGER NOT NULL,
    moved_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- When a pipeline passed a position, at most about one row a second: how old a published event is.
CREATE TABLE semel_progress (
    pipeline TEXT NOT NULL,
    position INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (pipeline, position)
) STRICT, WITHOUT ROWID;

CREATE INDEX semel_progress_age ON semel_progress (pipeline, at);

-- Events that left the straight path of a pipeline, and what became of them.
--   scheduled  its time has not come            waiting    behind another of its lane, or due
--   failed     another attempt follows          dead       until an operator retries or discards it
--   published  delivered after all              discarded  given up by an operator
CREATE TABLE semel_parked (
    pipeline       TEXT NOT NULL,
    seq            INTEGER NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    -- The order inside the lane is (place, turn, seq). A scheduled event gets its place when its
    -- turn comes; all others have the place of their seq.
    place          INTEGER NOT NULL,
    turn           INTEGER NOT NULL DEFAULT 0,
    state          TEXT NOT NULL CHECK (
        state IN ('scheduled', 'waiting', 'failed', 'dead', 'published', 'discarded')
    ),
    -- Whether later events of the lane wait behind it.
    holds          INTEGER NOT NULL CHECK (holds IN (0, 1)),
    attempts       INTEGER NOT NULL DEFAULT 0,
    -- Offered at this time; null while it waits behind another, and once nothing more is tried.
    due            INTEGER,
    error          TEXT,
    -- The epoch of the relay that has it in flight.
    taken          INTEGER,
    changed_at     INTEGER NOT NULL,
    PRIMARY KEY (pipeline, seq)
) STRICT, WITHOUT ROWID;

-- Whether something holds a lane, and what comes next in it.
CREATE INDEX semel_parked_lane
    ON semel_parked (pipeline, aggregate_type, aggregate_id, place, turn, seq) WHERE holds = 1;
-- What falls due next.
CREATE INDEX semel_parked_due
    ON semel_parked (pipeline, state, due) WHERE due IS NOT NULL AND taken IS NULL;
-- What to offer, in order.
CREATE INDEX semel_parked_offer
    ON semel_parked (pipeline, place, turn, seq, due)
    WHERE holds = 1 AND due IS NOT NULL AND taken IS NULL;

-- The messages each consumer has taken effect for.
CREATE TABLE semel_inbox (
    consumer     TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    processed_at INTEGER NOT NULL,
    result       BLOB,
    PRIMARY KEY (consumer, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX semel_inbox_age ON semel_inbox (processed_at);

-- Idempotency keys: a claim while version is null, a result afterwards. A claim made later always
-- has a greater token.
CREATE TABLE semel_keys (
    token       INTEGER PRIMARY KEY AUTOINCREMENT,
    key         BLOB NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    attempt     INTEGER NOT NULL,
    version     INTEGER,
    body        BLOB,
    -- When the lease runs out, or the result expires.
    until       INTEGER NOT NULL
) STRICT;

CREATE INDEX semel_keys_expiry ON semel_keys (until);

-- Tables of somebody else's shape: who reads which, and what failed there. All times are whole
-- microseconds since 1970-01-01 UTC.

-- The owner of a pipeline has its epoch; only the owner may mark rows.
CREATE TABLE semel_mapped (
    pipeline TEXT NOT NULL PRIMARY KEY,
    -- The table as it is written in SQL. Its marks are for one pipeline only.
    relation TEXT NOT NULL UNIQUE,
    epoch    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Events of mapped tables that failed, and what became of them.
--   waiting  an operator retried it             failed     another attempt follows
--   dead     until an operator does something   discarded  given up by an operator
CREATE TABLE semel_mapped_parked (
    -- The order inside the lane: that of the first failures.
    place          INTEGER PRIMARY KEY AUTOINCREMENT,
    pipeline       TEXT NOT NULL,
    row_id         TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('waiting', 'failed', 'dead', 'discarded')),
    -- 1 while later events of the lane wait behind it.
    holds          INTEGER NOT NULL CHECK (holds IN (0, 1)),
    attempts       INTEGER NOT NULL DEFAULT 0,
    -- When it is offered; null when it never is.
    due            INTEGER,
    -- The same as the relay said it.
    retry_at       INTEGER,
    error          TEXT,
    changed_at     INTEGER NOT NULL,
    UNIQUE (pipeline, row_id)
) STRICT;

CREATE INDEX semel_mapped_parked_lane
    ON semel_mapped_parked (pipeline, aggregate_type, aggregate_id, place) WHERE holds = 1;
CREATE INDEX semel_mapped_parked_due
    ON semel_mapped_parked (pipeline, due) WHERE due IS NOT NULL;

-- Relays that work on a pipeline, and into how many shares they divide it.
CREATE TABLE semel_member (
    pipeline TEXT NOT NULL,
    member   TEXT NOT NULL,
    shares   INTEGER NOT NULL,
    until    INTEGER NOT NULL,
    PRIMARY KEY (pipeline, member)
) STRICT, WITHOUT ROWID;

-- Who works on which share of a pipeline, and for how long without saying so again.
CREATE TABLE semel_share (
    pipeline TEXT NOT NULL,
    share    INTEGER NOT NULL,
    owner    TEXT NOT NULL,
    until    INTEGER NOT NULL,
    PRIMARY KEY (pipeline, share)
) STRICT, WITHOUT ROWID;

-- What operators changed, from the page or the API.
CREATE TABLE semel_audit (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    who      TEXT NOT NULL,
    what     TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    -- Which events were chosen, in words.
    filter   TEXT NOT NULL,
    -- How many there were; null when the change was begun and not concluded.
    events   INTEGER
) STRICT;
