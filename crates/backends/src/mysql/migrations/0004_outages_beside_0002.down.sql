DROP TABLE IF EXISTS semel_outages;
