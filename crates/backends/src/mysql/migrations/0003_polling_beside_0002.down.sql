SET @semel = IF(
    (SELECT count(*) FROM information_schema.columns WHERE table_schema = database()
        AND table_name = 'semel_cursor' AND column_name = 'polling') > 0,
    'ALTER TABLE semel_cursor DROP COLUMN polling', 'DO 0');
PREPARE semel FROM @semel;
EXECUTE semel;
DEALLOCATE PREPARE semel;
