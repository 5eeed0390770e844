-- Why relays cannot reach a sink, as they say themselves, again and again. What was not said for
-- 30 seconds holds no longer: whoever said it is gone.
create table semel.outages (
    pipeline text not null,
    relay    text not null,
    -- Which one, if that is known.
    sink     text,
    code     text not null,
    error    text not null,
    fix      text,
    since    timestamptz not null default now(),
    seen_at  timestamptz not null default now(),
    primary key (pipeline, relay)
);
