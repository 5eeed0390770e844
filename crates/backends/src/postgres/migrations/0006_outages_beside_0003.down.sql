drop table semel.outages;
