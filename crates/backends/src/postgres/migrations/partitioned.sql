-- Divides the outbox into partitions by the time in the ids, so that old events go with their
-- partition. What is there already, and what has an id without a time, is in semel.outbox_rest,
-- where events are deleted one by one.
lock table semel.outbox in access exclusive mode;

alter table semel.outbox rename to outbox_rest;
drop trigger outbox_check on semel.outbox_rest;
drop index semel.outbox_key, semel.outbox_key_id;
alter table semel.outbox_rest drop constraint outbox_pkey;
alter table semel.outbox_rest rename constraint outbox_id to outbox_rest_id;
alter index semel.outbox_txid rename to outbox_rest_txid;
create index outbox_rest_seq on semel.outbox_rest (seq);

create table semel.outbox (like semel.outbox_rest including defaults) partition by range (id);

do $$
declare
    last bigint := coalesce(pg_sequence_last_value('semel.outbox_seq_seq'), 0);
begin
    alter table semel.outbox_rest alter column seq drop identity;
    execute format('alter table semel.outbox alter column seq
        add generated always as identity (start with %s)', last + 1);
    execute 'create or replace view semel.readable as '
        || replace(pg_get_viewdef('semel.readable'), 'outbox_rest', 'outbox');
end $$;

alter table semel.outbox attach partition semel.outbox_rest default;
alter table semel.outbox add constraint outbox_id unique (id);
create index outbox_seq on semel.outbox (seq);
create index outbox_txid on semel.outbox (txid, seq);
create trigger outbox_check before insert on semel.outbox
    for each row when (new.key_id is null) execute function semel.check_event();

-- No constraint reaches over all partitions: keys have a table of their own.
create table semel.outbox_key (
    key text collate "C" primary key,
    id  uuid not null
);

create index outbox_key_id on semel.outbox_key (id);

insert into semel.outbox_key (key, id)
    select idempotency_key, id from semel.outbox_rest where idempotency_key is not null;

create function semel.take_key() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into semel.outbox_key (key, id) values (new.idempotency_key, new.id);
    if exists (select from semel.outbox o
            where o.id = new.key_id and o.id <> new.id and o.idempotency_key is null) then
        raise unique_violation using schema = 'semel', table = 'outbox',
            constraint = 'outbox_key_id', message = 'a key that is the id of another event',
            detail = format('Key (key_id)=(%s) already exists.', new.key_id);
    end if;
    return null;
end $$;

create trigger outbox_take_key after insert on semel.outbox
    for each row when (new.idempotency_key is not null) execute function semel.take_key();

create function semel.release_key() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from semel.outbox_key where key = old.idempotency_key;
    return null;
end $$;

create trigger outbox_release_key after delete on semel.outbox
    for each row when (old.idempotency_key is not null) execute function semel.release_key();

-- How much time a partition covers.
create function semel.partition_seconds() returns bigint language sql immutable parallel safe
as $$ select {seconds}::bigint $$;

-- The first id of a time, in seconds since 1970.
create or replace function semel.partition_bound(at double precision) returns uuid
language sql immutable parallel safe as $$
    select (lpad(to_hex((at * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Makes the partitions of now and of the next times; says how many. Nobody waits for this for
-- long: it gives up instead. Where events of such a time are in semel.outbox_rest, they stay there.
create function semel.add_partitions() returns integer language plpgsql
security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
    span  bigint := semel.partition_seconds();
    today bigint := extract(epoch from clock_timestamp());
    made  integer := 0;
    start bigint;
    name  text;
begin
    if not pg_try_advisory_xact_lock(hashtext('semel.add_partitions')) then
        return 0;
    end if;
    for ahead in 0..3 loop
        start := (today / span + ahead) * span;
        name := 'outbox_' || start;
        continue when to_regclass('semel.' || name) is not null or exists (
            select from semel.outbox_rest o where o.id >= semel.partition_bound(start)
                and o.id < semel.partition_bound(start + span));
        execute format('create table semel.%I (like semel.outbox including defaults)', name);
        execute format('alter table semel.outbox attach partition semel.%I
            for values from (%L) to (%L)', name, semel.partition_bound(start),
            semel.partition_bound(start + span));
        made := made + 1;
    end loop;
    return made;
end $$;

-- Whether some pipeline had not passed all events of a partition by a time, or needs one of them.
create function semel.partition_is_needed(name text, long_ago timestamptz) returns boolean
language plpgsql as $$
declare
    last   xid8;
    needed boolean;
begin
    execute format('select txid from semel.%I order by txid desc, seq desc limit 1', name) into last;
    if last is null then
        return false;
    end if;
    execute format('select not exists (select from semel.cursor)
        or exists (select from semel.passed_before($1) p where p.passed is null
            or $2 >= pg_snapshot_xmax(p.passed) or exists (
                select from pg_snapshot_xip(p.passed) as late (txid)
                join semel.%1$I o on o.txid = late.txid))
        or exists (select from semel.parked p join semel.%1$I o on o.seq = p.seq
            where p.state not in (''published'', ''discarded'') or p.changed_at >= $1)', name)
        into needed using long_ago, last;
    return needed;
end $$;

-- Drops one partition whose time is over for so long, if no pipeline needs it; says how many, which
-- is none or one. A writer or reader that is in the way for long makes it give up: nobody queues
-- behind it.
create function semel.drop_partition(age interval) returns integer language plpgsql
security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
    span     bigint := semel.partition_seconds();
    long_ago timestamptz := clock_timestamp() - age;
    name     text;
    start    bigint;
begin
    if not pg_try_advisory_xact_lock(hashtext('semel.drop_partition')) then
        return 0;
    end if;
    for name, start in
        select c.relname, substr(c.relname, 8)::bigint from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'semel.outbox'::regclass and c.relname ~ '^outbox_[0-9]+$'
        order by 2
    loop
        exit when to_timestamp(start + span) >= long_ago;
        continue when semel.partition_is_needed(name, long_ago);
        execute format('delete from semel.parked p using semel.%I o where o.seq = p.seq
            and p.state in (''published'', ''discarded'') and p.changed_at < $1', name)
            using long_ago;
        delete from semel.outbox_key k where k.id >= semel.partition_bound(start)
            and k.id < semel.partition_bound(start + span);
        lock table only semel.outbox in access exclusive mode;
        if semel.partition_is_needed(name, long_ago) then
            raise lock_not_available using message = 'an old partition is in use again: ' || name;
        end if;
        execute format('drop table semel.%I', name);
        return 1;
    end loop;
    return 0;
end $$;

revoke execute on function semel.add_partitions(), semel.drop_partition(interval) from public;

select semel.add_partitions();
