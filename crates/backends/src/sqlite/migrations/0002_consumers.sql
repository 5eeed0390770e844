-- Messages for which a consumer could not take effect, and those of their lanes that wait behind them:
-- dead, behind others, due (to be taken up), or held back for what is missing before them.
CREATE TABLE semel_letters (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer   TEXT NOT NULL,
    message_id TEXT NOT NULL,
    lane       INTEGER NOT NULL,
    -- The sequence of the event in its lane, or 0.
    place      INTEGER NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('dead', 'behind', 'due', 'held')),
    -- Microseconds since 1970.
    until      INTEGER,
    attempts   INTEGER NOT NULL,
    error      TEXT,
    message    TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    UNIQUE (consumer, message_id)
) STRICT;

CREATE INDEX semel_letters_lane ON semel_letters (consumer, lane, place, seq);
CREATE INDEX semel_letters_state ON semel_letters (consumer, state, seq);

-- How far each consumer got, in each scope.
CREATE TABLE semel_marks (
    consumer TEXT NOT NULL,
    scope    TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (consumer, scope)
) STRICT, WITHOUT ROWID;
