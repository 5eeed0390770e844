DROP TABLE IF EXISTS semel_outbox, semel_counter, semel_cursor, semel_progress, semel_parked,
    semel_inbox, semel_keys, semel_member, semel_share, semel_mapped, semel_mapped_parked,
    semel_audit;
