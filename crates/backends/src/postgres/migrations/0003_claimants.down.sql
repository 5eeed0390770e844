alter table semel.keys drop column claimant;
