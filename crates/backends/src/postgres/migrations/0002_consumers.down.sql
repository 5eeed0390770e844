drop table semel.letters, semel.marks;
