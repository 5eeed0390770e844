DROP TABLE semel_outages;
