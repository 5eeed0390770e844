-- Messages for which a consumer could not take effect, and those of their lanes that wait behind them:
-- dead, behind others, due (to be taken up), or held back for what is missing before them.
create table semel.letters (
    seq        bigint generated always as identity primary key,
    consumer   text not null,
    message_id uuid not null,
    lane       bigint not null,
    -- The sequence of the event in its lane, or 0.
    place      bigint not null,
    state      text not null check (state in ('dead', 'behind', 'due', 'held')),
    -- Microseconds since 1970.
    until      bigint,
    attempts   bigint not null,
    error      text,
    message    text not null,
    changed_at timestamptz not null default clock_timestamp(),
    unique (consumer, message_id)
);

create index letters_lane on semel.letters (consumer, lane, place, seq);
create index letters_state on semel.letters (consumer, state, seq);

-- How far each consumer got, in each scope.
create table semel.marks (
    consumer text not null,
    scope    text not null,
    position bigint not null,
    primary key (consumer, scope)
);
