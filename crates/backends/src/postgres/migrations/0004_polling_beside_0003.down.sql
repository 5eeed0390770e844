alter table semel.cursor drop column polling;
