-- Why relays cannot reach a sink, as they say themselves, again and again. What was not said for
-- 30 seconds holds no longer: whoever said it is gone.
CREATE TABLE semel_outages (
    pipeline TEXT NOT NULL,
    relay    TEXT NOT NULL,
    -- Which one, if that is known.
    sink     TEXT,
    code     TEXT NOT NULL,
    error    TEXT NOT NULL,
    fix      TEXT,
    since    INTEGER NOT NULL,
    seen_at  INTEGER NOT NULL,
    PRIMARY KEY (pipeline, relay)
) STRICT, WITHOUT ROWID;
