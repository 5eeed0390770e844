-- Who made a claim: whoever lost the answer to it finds it again by this name.
alter table semel.keys add column claimant uuid;
