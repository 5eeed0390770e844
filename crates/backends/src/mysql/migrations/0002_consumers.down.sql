DROP TABLE IF EXISTS semel_letters, semel_marks;
