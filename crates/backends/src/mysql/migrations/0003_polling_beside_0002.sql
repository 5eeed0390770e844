-- Why the owner of a share polls instead of tailing the log, as it says itself. MySQL cannot add a
-- column only if it is missing.
SET @semel = IF(
    (SELECT count(*) FROM information_schema.columns WHERE table_schema = database()
        AND table_name = 'semel_cursor' AND column_name = 'polling') > 0,
    'DO 0', 'ALTER TABLE semel_cursor ADD COLUMN polling TEXT');
PREPARE semel FROM @semel;
EXECUTE semel;
DEALLOCATE PREPARE semel;
