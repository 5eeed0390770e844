-- Why relays cannot reach a sink, as they say themselves, again and again. What was not said for
-- 30 seconds holds no longer: whoever said it is gone.
CREATE TABLE IF NOT EXISTS semel_outages (
    pipeline VARCHAR(255) NOT NULL,
    relay    VARCHAR(100) NOT NULL,
    -- Which one, if that is known.
    sink     TEXT,
    code     VARCHAR(100) NOT NULL,
    error    MEDIUMTEXT NOT NULL,
    fix      MEDIUMTEXT,
    since    DATETIME(6) NOT NULL,
    seen_at  DATETIME(6) NOT NULL,
    PRIMARY KEY (pipeline, relay)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4
/*M! COLLATE = utf8mb4_nopad_bin */ /*!80017 COLLATE = utf8mb4_0900_bin */;
