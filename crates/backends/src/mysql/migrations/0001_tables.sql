-- Needs MariaDB 10.11 or later, or MySQL 8.0.17 or later. All times are UTC.

-- One row per event, inserted in the business transaction. A plain INSERT needs aggregate_type,
-- aggregate_id, event_type and payload; leave seq and position to semel.
CREATE TABLE IF NOT EXISTS semel_outbox (
    seq             BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- The place among all events: 0 until a relay finds the row committed. Numbers of seq are given
    -- out before the commit and so tell nothing about what is still to come; these do.
    position        BIGINT UNSIGNED NOT NULL DEFAULT 0,
    -- A UUID of version 7 unless the writer gives one.
    id              VARCHAR(36) COLLATE utf8mb4_general_ci NOT NULL DEFAULT (lower(concat(
        substr(lpad(hex(floor(unix_timestamp(now(3)) * 1000)), 12, '0'), 1, 8), '-',
        substr(lpad(hex(floor(unix_timestamp(now(3)) * 1000)), 12, '0'), 9, 4),
        '-7', substr(hex(random_bytes(2)), 2),
        '-', substr('89ab', 1 + (ord(random_bytes(1)) & 3), 1), substr(hex(random_bytes(2)), 2),
        '-', hex(random_bytes(6))
    ))),
    aggregate_type  VARCHAR(255) NOT NULL CHECK (aggregate_type <> ''),
    aggregate_id    VARCHAR(255) NOT NULL CHECK (aggregate_id <> ''),
    event_type      VARCHAR(255) NOT NULL CHECK (event_type <> ''),
    -- The bytes as they were sent, text or not.
    payload         LONGBLOB NOT NULL,
    content_type    VARCHAR(255) NOT NULL DEFAULT 'application/json',
    headers         JSON CHECK (json_type(headers) = 'OBJECT'),
    -- Without one, the id is the key.
    idempotency_key VARCHAR(255) CHECK (idempotency_key <> ''),
    created_at      DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- Not published before this time.
    available_at    DATETIME(6),
    -- No two events share a key, however they were written.
    event_key       VARCHAR(255) AS (coalesce(idempotency_key, lower(id))) VIRTUAL,
    UNIQUE KEY semel_outbox_id (id),
    UNIQUE KEY semel_outbox_key (event_key),
    KEY semel_outbox_position (position),
    CONSTRAINT semel_outbox_uuid
        CHECK (id REGEXP '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$')
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- The last position that was given out: one row, locked by whoever gives out the next ones, so that
-- positions become visible in their order.
CREATE TABLE IF NOT EXISTS semel_counter (
    name VARCHAR(20) NOT NULL PRIMARY KEY,
    last BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

INSERT IGNORE INTO semel_counter (name, last) VALUES ('position', 0);

-- How far each share of a pipeline is: every event of its lanes up to position, and those in the
-- spans [first, last] of ahead, is published or in semel_parked. Only the owner, who has the epoch,
-- may change it. A lane belongs to share mod(crc32(concat(aggregate_type, '/', aggregate_id)), shares).
CREATE TABLE IF NOT EXISTS semel_cursor (
    pipeline   VARCHAR(100) NOT NULL,
    share      INT UNSIGNED NOT NULL DEFAULT 0,
    -- How many there are: the same in all rows of a pipeline.
    shares     INT UNSIGNED NOT NULL DEFAULT 1,
    position   BIGINT UNSIGNED NOT NULL,
    ahead      LONGTEXT NOT NULL,
    -- The last event that was handed out when the row was written.
    handed_out BIGINT UNSIGNED NOT NULL DEFAULT 0,
    epoch      BIGINT UNSIGNED NOT NULL,
    moved_at   DATETIME(6) NOT NULL,
    PRIMARY KEY (pipeline, share)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- When a share passed a position, at most about one row a second: how old a published event is.
CREATE TABLE IF NOT EXISTS semel_progress (
    pipeline  VARCHAR(100) NOT NULL,
    share     INT UNSIGNED NOT NULL DEFAULT 0,
    position  BIGINT UNSIGNED NOT NULL,
    passed_at DATETIME(6) NOT NULL,
    PRIMARY KEY (pipeline, share, position)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- Events that left the straight path of a pipeline, and what became of them.
--   scheduled  its time has not come            waiting    behind another of its lane, or due
--   failed     another attempt follows          dead       until an operator retries or discards it
--   published  delivered after all              discarded  given up by an operator
CREATE TABLE IF NOT EXISTS semel_parked (
    pipeline       VARCHAR(100) NOT NULL,
    position       BIGINT UNSIGNED NOT NULL,
    -- Of its lane, as long as there is something to do.
    share          INT UNSIGNED NOT NULL DEFAULT 0,
    aggregate_type VARCHAR(255) NOT NULL,
    aggregate_id   VARCHAR(255) NOT NULL,
    -- The order inside the lane is (place, turn, position). A scheduled event gets its place when
    -- its turn comes; all others have the place of their position.
    place          BIGINT UNSIGNED NOT NULL,
    turn           BIGINT NOT NULL DEFAULT 0,
    state          VARCHAR(10) NOT NULL CHECK (
        state IN ('scheduled', 'waiting', 'failed', 'dead', 'published', 'discarded')
    ),
    -- Whether later events of the lane wait behind it.
    holds          BOOLEAN NOT NULL,
    attempts       INT UNSIGNED NOT NULL DEFAULT 0,
    -- Offered at this time, by this server's clock; null while it waits behind another, and once
    -- nothing more is tried.
    due            DATETIME(6),
    -- The same as the relay said it.
    retry_at       DATETIME(6),
    error          MEDIUMTEXT,
    -- The epoch of the relay that has it in flight, or 0.
    taken          BIGINT UNSIGNED NOT NULL DEFAULT 0,
    changed_at     DATETIME(6) NOT NULL,
    offered        BOOLEAN AS (holds = 1 AND due IS NOT NULL AND taken = 0) VIRTUAL,
    PRIMARY KEY (pipeline, position),
    -- Whether something holds a lane, and what comes next in it.
    KEY semel_parked_lane
        (pipeline, aggregate_type, aggregate_id, holds, place, turn, position, due, state),
    -- What falls due next.
    KEY semel_parked_due (pipeline, share, state, taken, due),
    -- What to offer, in order.
    KEY semel_parked_offer (pipeline, share, offered, place, turn, position, due)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- The messages each consumer has taken effect for.
CREATE TABLE IF NOT EXISTS semel_inbox (
    consumer     VARCHAR(255) NOT NULL,
    message_id   BINARY(16) NOT NULL,
    processed_at DATETIME(6) NOT NULL,
    result       LONGBLOB,
    PRIMARY KEY (consumer, message_id),
    KEY semel_inbox_age (processed_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- Idempotency keys: a claim while version is null, a result afterwards. A claim made later always
-- has a greater token; a key that was given up stays for a while so that this holds.
CREATE TABLE IF NOT EXISTS semel_keys (
    scoped_key  BINARY(32) NOT NULL PRIMARY KEY,
    fingerprint BINARY(32) NOT NULL,
    -- Who asked last and got it.
    claimant    BINARY(16) NOT NULL,
    token       BIGINT UNSIGNED NOT NULL,
    attempt     INT UNSIGNED NOT NULL,
    version     TINYINT UNSIGNED,
    body        LONGBLOB,
    released    BOOLEAN NOT NULL DEFAULT FALSE,
    -- When the lease runs out, or the result expires.
    expires_at  DATETIME(6) NOT NULL,
    KEY semel_keys_expiry (expires_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Tables of somebody else's shape: who reads which, and what failed there. All times are whole
-- microseconds since 1970-01-01 UTC.

-- The owner of a pipeline has its epoch; only the owner may mark rows.
CREATE TABLE IF NOT EXISTS semel_mapped (
    pipeline VARCHAR(100) NOT NULL PRIMARY KEY,
    -- The table as it is written in SQL. Its marks are for one pipeline only.
    relation VARCHAR(300) NOT NULL UNIQUE,
    epoch    BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- Events of mapped tables that failed, and what became of them.
--   waiting  an operator retried it             failed     another attempt follows
--   dead     until an operator does something   discarded  given up by an operator
CREATE TABLE IF NOT EXISTS semel_mapped_parked (
    -- The order inside the lane: that of the first failures.
    place          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    pipeline       VARCHAR(100) NOT NULL,
    -- Compared byte by byte, whatever the collation of the mapped table.
    row_id         VARBINARY(1020) NOT NULL,
    aggregate_type VARBINARY(1020) NOT NULL,
    aggregate_id   VARBINARY(1020) NOT NULL,
    state          VARCHAR(10) NOT NULL CHECK (
        state IN ('waiting', 'failed', 'dead', 'discarded')
    ),
    -- 1 while later events of the lane wait behind it.
    holds          TINYINT NOT NULL,
    attempts       BIGINT NOT NULL DEFAULT 0,
    -- When it is offered, by this server's clock; null when it never is.
    due            BIGINT,
    -- The same as the relay said it.
    retry_at       BIGINT,
    error          MEDIUMTEXT,
    changed_at     BIGINT NOT NULL,
    UNIQUE KEY semel_mapped_parked_row (pipeline, row_id),
    KEY semel_mapped_parked_lane (pipeline, aggregate_type, aggregate_id, holds, place),
    KEY semel_mapped_parked_due (pipeline, due)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- Relays that work on a pipeline, and into how many shares they divide it.
CREATE TABLE IF NOT EXISTS semel_member (
    pipeline   VARCHAR(255) NOT NULL,
    member     VARCHAR(100) NOT NULL,
    shares     INT UNSIGNED NOT NULL,
    expires_at DATETIME(6) NOT NULL,
    PRIMARY KEY (pipeline, member)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- Who works on which share of a pipeline, and for how long without saying so again.
CREATE TABLE IF NOT EXISTS semel_share (
    pipeline   VARCHAR(255) NOT NULL,
    share      INT UNSIGNED NOT NULL,
    owner      VARCHAR(100) NOT NULL,
    expires_at DATETIME(6) NOT NULL,
    PRIMARY KEY (pipeline, share)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- What operators changed, from the page or the API.
CREATE TABLE IF NOT EXISTS semel_audit (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    changed_at DATETIME(6) NOT NULL,
    who        VARCHAR(255) NOT NULL,
    what       VARCHAR(100) NOT NULL,
    pipeline   VARCHAR(255) NOT NULL,
    -- Which events were chosen, in words.
    filter     MEDIUMTEXT NOT NULL,
    -- How many there were; null when the change was begun and not concluded.
    events     BIGINT UNSIGNED
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
