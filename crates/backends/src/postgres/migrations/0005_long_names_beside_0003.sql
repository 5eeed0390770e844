-- Names and keys are as long as the library lets them be, whoever writes them: a plain INSERT brought
-- names of any length.
create or replace function semel.check_event() returns trigger language plpgsql as $$
begin
    if new.aggregate_type = '' or new.aggregate_id = '' or new.event_type = ''
        or new.idempotency_key = '' then
        raise check_violation using schema = 'semel', table = 'outbox',
            constraint = 'outbox_names', message = 'an event with an empty name or key',
            hint = 'aggregate_type, aggregate_id, event_type and idempotency_key are not empty';
    elsif greatest(length(new.aggregate_type), length(new.aggregate_id), length(new.event_type),
            length(new.idempotency_key)) > 255 then
        raise check_violation using schema = 'semel', table = 'outbox',
            constraint = 'outbox_names', message = 'an event with a name or key that is too long',
            hint = 'aggregate_type, aggregate_id, event_type and idempotency_key have 255 characters'
                ' at most; put what is longer into the payload';
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

-- What a lane is called where it is parked. An entry of an index has room for 2,700 bytes, and events that
-- were written before this have names of any length, as have tables of somebody else's shape: what is too
-- long is cut off, with a hash of the whole. Names of 255 characters are never too long.
create function semel.lane_name(name text) returns text language sql immutable parallel safe as $$
    select case when octet_length(name) <= 1100 then name else
        left(name, 200) || '~' || to_hex(hashtextextended(name collate "C", 0))
            || to_hex(hashtextextended(name collate "C", 1)) end
$$;

create function semel.name_lane() returns trigger language plpgsql as $$
begin
    new.aggregate_type := semel.lane_name(new.aggregate_type);
    new.aggregate_id := semel.lane_name(new.aggregate_id);
    return new;
end $$;

create trigger parked_lane_name before insert on semel.parked for each row
    when (octet_length(new.aggregate_type) > 1100 or octet_length(new.aggregate_id) > 1100)
    execute function semel.name_lane();
create trigger mapped_parked_lane_name before insert on semel.mapped_parked for each row
    when (octet_length(new.aggregate_type) > 1100 or octet_length(new.aggregate_id) > 1100)
    execute function semel.name_lane();

-- Long names that an index had room for, because they could be compressed.
update semel.parked set aggregate_type = semel.lane_name(aggregate_type),
    aggregate_id = semel.lane_name(aggregate_id)
where octet_length(aggregate_type) > 1100 or octet_length(aggregate_id) > 1100;
update semel.mapped_parked set aggregate_type = semel.lane_name(aggregate_type),
    aggregate_id = semel.lane_name(aggregate_id)
where octet_length(aggregate_type) > 1100 or octet_length(aggregate_id) > 1100;
