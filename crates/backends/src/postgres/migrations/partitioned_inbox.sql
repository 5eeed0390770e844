-- Divides the inbox into partitions by the ids of the messages, which begin with their time, so that
-- old ids go with their partition. The partition follows from the id alone: a copy of a message is
-- looked for where the first one was recorded, so ids are unique over all partitions. What is there
-- already, and ids without a time, is in semel.inbox_rest, where ids are deleted one by one.
lock table semel.inbox in access exclusive mode;

alter table semel.inbox rename to inbox_rest;
alter table semel.inbox_rest rename constraint inbox_pkey to inbox_rest_pkey;
alter index semel.inbox_age rename to inbox_rest_age;

create table semel.inbox (
    like semel.inbox_rest including defaults,
    constraint inbox_pkey primary key (consumer, message_id)
) partition by range (message_id);
create index inbox_age on semel.inbox (processed_at);
alter table semel.inbox attach partition semel.inbox_rest default;

-- How much time a partition of the inbox covers.
create function semel.inbox_seconds() returns bigint language sql immutable parallel safe
as $$ select {seconds}::bigint $$;

-- The first id of a time, in seconds since 1970.
create or replace function semel.partition_bound(at double precision) returns uuid
language sql immutable parallel safe as $$
    select (lpad(to_hex((at * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the partitions of now and of the next times; says how many. Nobody waits for this for
-- long: it gives up instead. Where ids of such a time are in semel.inbox_rest, they stay there.
create function semel.add_inbox_partitions() returns integer language plpgsql
security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
    span  bigint := semel.inbox_seconds();
    today bigint := extract(epoch from clock_timestamp());
    made  integer := 0;
    start bigint;
    name  text;
begin
    if not pg_try_advisory_xact_lock(hashtext('semel.add_inbox_partitions')) then
        return 0;
    end if;
    for ahead in 0..3 loop
        start := (today / span + ahead) * span;
        name := 'inbox_' || start;
        continue when to_regclass('semel.' || name) is not null or exists (
            select from semel.inbox_rest i where i.message_id >= semel.partition_bound(start)
                and i.message_id < semel.partition_bound(start + span));
        execute format('create table semel.%I (like semel.inbox including defaults)', name);
        execute format('alter table semel.inbox attach partition semel.%I
            for values from (%L) to (%L)', name, semel.partition_bound(start),
            semel.partition_bound(start + span));
        made := made + 1;
    end loop;
    return made;
end $$;

-- Drops one partition whose time is over for so long and in which nothing was recorded since then:
-- an old message may have come late. Says how many, which is none or one. A consumer that is in the
-- way for long makes it give up: nobody queues behind it.
create function semel.drop_inbox_partition(age interval) returns integer language plpgsql
security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
    span     bigint := semel.inbox_seconds();
    long_ago timestamptz := clock_timestamp() - age;
    name     text;
    start    bigint;
    is_young boolean;
begin
    if not pg_try_advisory_xact_lock(hashtext('semel.drop_inbox_partition')) then
        return 0;
    end if;
    for name, start in
        select c.relname, substr(c.relname, 7)::bigint from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'semel.inbox'::regclass and c.relname ~ '^inbox_[0-9]+$'
        order by 2
    loop
        exit when to_timestamp(start + span) >= long_ago;
        execute format('select exists (select from semel.%I where processed_at >= $1)', name)
            into is_young using long_ago;
        continue when is_young;
        lock table only semel.inbox in access exclusive mode;
        -- Whoever recorded an id in it meanwhile has ended.
        execute format('select exists (select from semel.%I where processed_at >= $1)', name)
            into is_young using long_ago;
        exit when is_young;
        execute format('drop table semel.%I', name);
        return 1;
    end loop;
    return 0;
end $$;

revoke execute on function semel.add_inbox_partitions(), semel.drop_inbox_partition(interval)
    from public;

select semel.add_inbox_partitions();
