DROP TABLE semel_letters;
DROP TABLE semel_marks;
