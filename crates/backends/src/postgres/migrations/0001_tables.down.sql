-- Nothing of yours goes with them: what depends on these makes it fail, and then all of them stay.
do $$ begin
    drop publication if exists semel_outbox;
    drop publication if exists semel_messages;
exception when insufficient_privilege then
    -- Somebody else made it; it is of no table any more.
    null;
end $$;
do $$ begin
    perform pg_drop_replication_slot(slot_name) from pg_replication_slots, pg_database d
    where slot_name = 'semel_messages_' || d.oid and d.datname = current_database();
end $$;
drop view semel.events;
drop function semel.events_of(text);
drop function semel.unsettled(text);
drop function semel.settled(semel.cursor, xid8, bigint);
drop view semel.readable;
drop view semel.deletable;
drop function semel.passed_before(timestamptz);
drop table semel.outbox, semel.cursor, semel.passage, semel.parked, semel.inbox, semel.keys,
    semel.mapped, semel.mapped_parked, semel.member, semel.share, semel.audit;
drop function semel.check_event();
drop sequence semel.key_tokens;
drop function semel.share_of(text, text, integer);
drop function semel.uuid_v7();

-- Of a partitioned outbox.
drop table if exists semel.outbox_key;
drop function if exists semel.take_key(), semel.release_key(), semel.add_partitions(),
    semel.drop_partition(interval),
    semel.partition_is_needed(text, timestamptz), semel.partition_bound(double precision),
    semel.partition_seconds();

-- Of a partitioned inbox.
drop function if exists semel.add_inbox_partitions(), semel.drop_inbox_partition(interval),
    semel.inbox_seconds();
