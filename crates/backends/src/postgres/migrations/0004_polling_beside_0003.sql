-- Why the owner of a share polls instead of tailing the log, as it says itself.
alter table semel.cursor add column polling text;
