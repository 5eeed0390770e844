drop trigger parked_lane_name on semel.parked;
drop trigger mapped_parked_lane_name on semel.mapped_parked;
drop function semel.name_lane();
drop function semel.lane_name(text);
create or replace function semel.check_event() returns trigger language plpgsql as $$
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
