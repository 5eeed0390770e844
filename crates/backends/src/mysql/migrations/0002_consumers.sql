-- Messages for which a consumer could not take effect, and those of their lanes that wait behind them:
-- dead, behind others, due (to be taken up), or held back for what is missing before them.
CREATE TABLE IF NOT EXISTS semel_letters (
    seq        BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer   VARCHAR(255) NOT NULL,
    message_id BINARY(16) NOT NULL,
    lane       BIGINT NOT NULL,
    -- The sequence of the event in its lane, or 0.
    place      BIGINT NOT NULL,
    state      VARCHAR(10) NOT NULL,
    -- Microseconds since 1970.
    until      BIGINT,
    attempts   BIGINT NOT NULL,
    error      TEXT,
    message    LONGTEXT NOT NULL,
    changed_at DATETIME(6) NOT NULL,
    UNIQUE KEY semel_letters_id (consumer, message_id),
    KEY semel_letters_lane (consumer, lane, place, seq),
    KEY semel_letters_state (consumer, state, seq)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;

-- How far each consumer got, in each scope.
CREATE TABLE IF NOT EXISTS semel_marks (
    consumer VARCHAR(255) NOT NULL,
    scope    VARCHAR(255) NOT NULL,
    position BIGINT NOT NULL,
    PRIMARY KEY (consumer, scope)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;
