-- Needs PostgreSQL 13 or later.

-- A UUID of version 7, ordered by time. PostgreSQL has one of its own only from 18 on.
create function semel.uuid_v7() returns uuid language sql volatile parallel safe as $$
    select encode(set_bit(set_bit(overlay(
        uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- One row per event, inserted in the business transaction and never updated. A plain INSERT needs
-- aggregate_type, aggregate_id, event_type and payload; leave txid and seq to the database.
create table semel.outbox (
    -- The transaction that wrote the row: what a relay finds new rows by.
    txid            xid8 not null default pg_current_xact_id(),
    -- The order inside an aggregate.
    seq             bigint not null generated always as identity,
    created_at      timestamptz not null default clock_timestamp(),
    -- Not published before this time.
    available_at    timestamptz,
    id              uuid not null default semel.uuid_v7(),
    aggregate_type  text not null,
    aggregate_id    text not null,
    event_type      text not null,
    -- Exactly one of the two: text, such as JSON, or bytes that are no text.
    payload         text,
    payload_bytes   bytea,
    content_type    text not null default 'application/json',
    -- An object of strings.
    headers         json,
    -- Without one, the id is the key.
    idempotency_key text,
    -- The key when it is an id, or written like one. Leave it to the database.
    key_id          uuid,
    constraint outbox_pkey primary key (seq),
    constraint outbox_id unique (id)
);

create index outbox_txid on semel.outbox (txid, seq);

-- No two events share a key, however they were written, be it a key of their own or their id.
create unique index outbox_key on semel.outbox (idempotency_key collate "C")
    where idempotency_key is not null;
create unique index outbox_key_id on semel.outbox (key_id);

-- What an event must be. A CHECK would say it more plainly; PostgreSQL reads each one anew from its
-- text with every statement, and these would cost a single INSERT more than all its indexes. The
-- library has checked its events, and says so by giving key_id.
create function semel.check_event() returns trigger language plpgsql as $$
begin
    if new.aggregate_type = '' or new.aggregate_id = '' or new.event_type = ''
        or new.idempotency_key = '' then
        raise check_violation using schema = 'semel', table = 'outbox',
            constraint = 'outbox_names', message = 'an event with an empty name or key',
            hint = 'aggregate_type, aggregate_id, event_type and idempotency_key are not empty';
    elsif num_nonnulls(new.payload, new.payload_bytes) <> 1 then
        raise check_violation using schema = 'semel', table = 'outbox',
            constraint = 'outbox_payload', message = 'an event without a payload, or with two',
            hint = 'give payload (text) or payload_bytes (no text)';
    elsif json_typeof(new.headers) <> 'object' then
        raise check_violation using schema = 'semel', table = 'outbox',
            constraint = 'outbox_headers', message = 'headers that are not an object',
            hint = 'write {"name": "value"}, or leave them out';
    end if;
    if new.idempotency_key is null then
        new.key_id := new.id;
    elsif new.idempotency_key ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        new.key_id := new.idempotency_key::uuid;
    else
        new.key_id := null;
    end if;
    return new;
end $$;

create trigger outbox_check before insert on semel.outbox
    for each row when (new.key_id is null) execute function semel.check_event();

-- Where events are deleted one by one: everywhere, unless the outbox is partitioned.
create view semel.deletable as
    select txid, seq, aggregate_type, aggregate_id from semel.outbox;

-- The share of a pipeline of n shares that a lane belongs to. The same on every server of one byte
-- order and encoding.
create function semel.share_of(aggregate_type text, aggregate_id text, n integer) returns integer
language sql immutable parallel safe as $$
    select case when n = 1 then 0 else
        (hashtextextended(aggregate_type || '/' || aggregate_id collate "C", 0) & 2147483647)::integer
            % n end
$$;

-- How far each share of each pipeline is: all shares of a pipeline are there, or none. Settled,
-- which means published or in semel.parked, are the events of its lanes
--   that are visible in passed,
--   that are visible in window_end and have a seq up to progress,
--   whose seq is in one of the spans of ahead: {first, after last, first, after last, ...}.
-- Only the owner, who has the epoch, may change it.
create table semel.cursor (
    pipeline   text not null,
    share      integer not null,
    -- How many shares the pipeline has.
    shares     integer not null check (shares between 1 and 64 and share between 0 and shares - 1),
    epoch      bigint not null,
    -- Whose transaction ids these are: system identifier / database oid.
    server     text not null,
    passed     pg_snapshot not null,
    window_end pg_snapshot,
    window_no  bigint not null default 0,
    progress   bigint not null default 0,
    ahead      bigint[] not null default '{}',
    -- The highest seq that was ever settled.
    top        bigint not null default 0,
    -- How many windows there were.
    windows    bigint not null default 0,
    -- Handed out are the events visible in out_from, and those visible in out_end up to out_seq.
    out_from   pg_snapshot,
    out_end    pg_snapshot,
    out_seq    bigint,
    moved_at   timestamptz not null default clock_timestamp(),
    primary key (pipeline, share)
) with (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- Where a share was at the end of every second in which it moved: when events were published.
create table semel.passage (
    pipeline text not null,
    share    integer not null,
    at       timestamptz not null,
    passed   pg_snapshot not null,
    primary key (pipeline, share, at)
);

-- Events that left the straight path of a pipeline, and what became of them.
--   scheduled  its time has not come            waiting    behind another of its lane, or due
--   failed     another attempt follows          dead       until an operator retries or discards it
--   published  delivered after all              discarded  given up by an operator
create table semel.parked (
    pipeline       text not null,
    seq            bigint not null,
    -- The share its lane belongs to; what is published or discarded may keep a former one.
    share          integer not null,
    -- The order inside the lane is (place, seq): which window of the log it came with.
    place          bigint not null,
    aggregate_type text not null,
    aggregate_id   text not null,
    state          text not null check (
        state in ('scheduled', 'waiting', 'failed', 'dead', 'published', 'discarded')),
    -- Whether later events of the lane wait behind it, and whether it waits behind none.
    holds          boolean not null,
    head           boolean not null default false,
    attempts       integer not null default 0,
    -- When it is offered if nothing holds it, by this server's clock; null when it never is.
    due            timestamptz,
    -- The same as the relay said it.
    retry_at       timestamptz,
    error          text,
    -- The epoch of the relay that has it in flight.
    taken          bigint,
    changed_at     timestamptz not null default clock_timestamp(),
    primary key (pipeline, seq)
);

create index parked_lane on semel.parked (pipeline, aggregate_type, aggregate_id, place, seq)
    where holds;
create index parked_head on semel.parked (pipeline, aggregate_type, aggregate_id) where head;
create index parked_due on semel.parked (pipeline, share, due)
    where taken is null and due is not null and (head or state = 'scheduled');

-- Whether a share has settled an event of its lanes.
create function semel.settled(c semel.cursor, txid xid8, seq bigint) returns boolean
language sql stable parallel safe as $$
    select pg_visible_in_snapshot(txid, c.passed)
        or (seq <= c.progress and pg_visible_in_snapshot(txid, c.window_end)) is true
        or width_bucket(seq, c.ahead) % 2 = 1
$$;

-- How far each share had come before a time; null when it had not come anywhere.
create function semel.passed_before(long_ago timestamptz)
returns table (pipeline text, share integer, shares integer, passed pg_snapshot)
language sql stable parallel safe as $$
    select c.pipeline, c.share, c.shares, case when c.moved_at < long_ago then c.passed else (
        select h.passed from semel.passage h
        where h.pipeline = c.pipeline and h.share = c.share and h.at < long_ago
        order by h.at desc limit 1) end
    from semel.cursor c
$$;

-- What a pipeline has not settled of the log, whether it was handed out or not. The upper bound,
-- which every row is below, lets the planner expect a range and follow the index.
create function semel.unsettled(pipeline text) returns table (seq bigint, txid xid8, share integer)
language sql stable parallel safe as $$
    with me as materialized (
        select c.passed, c.shares from semel.cursor c where c.pipeline = unsettled.pipeline
    ), since as materialized (
        select coalesce((select pg_snapshot_xmax(passed) from me order by 1 limit 1), '0') as txid,
            coalesce((select shares from me limit 1), 1) as shares
    ), log as (
        select o.seq, o.txid,
            semel.share_of(o.aggregate_type, o.aggregate_id, since.shares) as share
        from since, semel.outbox o
        where o.txid >= since.txid and o.txid <= '18446744073709551615'
        union all
        select o.seq, o.txid, semel.share_of(o.aggregate_type, o.aggregate_id, since.shares)
        from since, semel.outbox o
        where o.txid = any (array(select pg_snapshot_xip(passed) from me)) and o.txid < since.txid
    )
    select l.seq, l.txid, l.share from log l
    left join semel.cursor c on c.pipeline = unsettled.pipeline and c.share = l.share
    where semel.settled(c, l.txid, l.seq) is not true
$$;

-- The outbox as its readers see it: without payloads for those who may not select them.
create view semel.readable as
    select txid, seq, created_at, available_at, id, aggregate_type, aggregate_id, event_type,
        case when (select has_column_privilege('semel.outbox', 'payload', 'select'))
            then payload end as payload,
        case when (select has_column_privilege('semel.outbox', 'payload_bytes', 'select'))
            then payload_bytes end as payload_bytes,
        content_type, headers, idempotency_key
    from semel.outbox;

-- The events as one pipeline sees them.
create function semel.events_of(pipeline text) returns table (
    seq bigint, state text, attempts integer, next_attempt timestamptz, error text,
    published_at timestamptz, id uuid, aggregate_type text, aggregate_id text, event_type text,
    payload text, payload_bytes bytea, content_type text, headers json, idempotency_key text,
    created_at timestamptz, available_at timestamptz
) language sql stable parallel safe as $$
    select o.seq,
        case
            when p.taken = c.epoch then 'publishing'
            when p.state in ('scheduled', 'waiting') then 'pending'
            when p.state is not null then p.state
            when c.pipeline is null then 'pending'
            when semel.settled(c, o.txid, o.seq) then 'published'
            when pg_visible_in_snapshot(o.txid, c.out_from)
                or (o.seq <= c.out_seq and pg_visible_in_snapshot(o.txid, c.out_end))
                then 'publishing'
            else 'pending'
        end,
        coalesce(p.attempts, 0),
        case when p.state in ('scheduled', 'failed') then coalesce(p.retry_at, p.due) end,
        p.error,
        case
            when p.state = 'published' then p.changed_at
            when p.state is null and semel.settled(c, o.txid, o.seq) then coalesce((
                select h.at from semel.passage h
                where h.pipeline = c.pipeline and h.share = c.share
                    and pg_visible_in_snapshot(o.txid, h.passed)
                order by h.at limit 1), c.moved_at)
        end,
        o.id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload, o.payload_bytes,
        o.content_type, o.headers, o.idempotency_key, o.created_at, o.available_at
    from semel.readable o
    left join semel.cursor c on c.pipeline = events_of.pipeline
        and c.share = semel.share_of(o.aggregate_type, o.aggregate_id, c.shares)
    left join semel.parked p on p.pipeline = events_of.pipeline and p.seq = o.seq
$$;

-- The life of every event in every pipeline.
create view semel.events as
    select c.pipeline, e.*
    from (
        select pipeline from semel.cursor where share = 0
        union all
        select null where not exists (select from semel.cursor)
    ) c
    cross join lateral semel.events_of(c.pipeline) e;

-- The messages each consumer has taken effect for.
create table semel.inbox (
    consumer     text not null,
    message_id   uuid not null,
    processed_at timestamptz not null default clock_timestamp(),
    result       bytea,
    primary key (consumer, message_id)
);

create index inbox_age on semel.inbox (processed_at);

-- Idempotency keys: a claim while body is null, a result afterwards. A claim made later always has
-- a greater token; a key that was given up stays for a while so that this holds.
create table semel.keys (
    key         bytea primary key,
    fingerprint bytea not null,
    token       bigint not null,
    attempt     integer not null,
    version     smallint,
    body        bytea,
    -- When the lease runs out, or the result expires.
    until       timestamptz not null,
    released    boolean not null default false
);

create index keys_expiry on semel.keys (until) where body is not null or released;

create sequence semel.key_tokens;

-- Tables of somebody else's shape: who reads which, and what failed there. All times are whole
-- microseconds since 1970-01-01 UTC.

-- The owner of a pipeline has its epoch; only the owner may mark rows.
create table semel.mapped (
    pipeline text primary key,
    -- The table as it is written in SQL. Its marks are for one pipeline only.
    relation text not null unique,
    epoch    bigint not null
);

-- Events of mapped tables that failed, and what became of them.
--   waiting  an operator retried it             failed     another attempt follows
--   dead     until an operator does something   discarded  given up by an operator
create table semel.mapped_parked (
    -- The order inside the lane: that of the first failures.
    place          bigint generated always as identity primary key,
    pipeline       text not null,
    row_id         text collate "C" not null,
    aggregate_type text collate "C" not null,
    aggregate_id   text collate "C" not null,
    state          text not null check (state in ('waiting', 'failed', 'dead', 'discarded')),
    -- 1 while later events of the lane wait behind it.
    holds          bigint not null check (holds in (0, 1)),
    attempts       bigint not null default 0,
    -- When it is offered, by this server's clock; null when it never is.
    due            bigint,
    -- The same as the relay said it.
    retry_at       bigint,
    error          text,
    changed_at     bigint not null,
    unique (pipeline, row_id)
);

create index mapped_parked_lane
    on semel.mapped_parked (pipeline, aggregate_type, aggregate_id, place) where holds = 1;
create index mapped_parked_due on semel.mapped_parked (pipeline, due) where due is not null;

-- Relays that work on a pipeline, and into how many shares they divide it.
create table semel.member (
    pipeline text not null,
    member   text not null,
    shares   integer not null,
    until    timestamptz not null,
    primary key (pipeline, member)
) with (fillfactor = 20);

-- Who works on which share of a pipeline, and for how long without saying so again.
create table semel.share (
    pipeline text not null,
    share    integer not null,
    owner    text not null,
    until    timestamptz not null,
    primary key (pipeline, share)
) with (fillfactor = 20);

-- What operators changed, from the page or the API.
create table semel.audit (
    id       bigint generated always as identity primary key,
    at       timestamptz not null default clock_timestamp(),
    who      text not null,
    what     text not null,
    pipeline text not null,
    -- Which events were chosen, in words.
    filter   text not null,
    -- How many there were; null when the change was begun and not concluded.
    events   bigint
);
