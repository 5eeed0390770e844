-- Nothing here is unique by reference: what happens once does so because of the client's key.
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS payments (customer TEXT NOT NULL, cents INTEGER NOT NULL, reference TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS transfers (cents INTEGER NOT NULL, reference TEXT NOT NULL);
INSERT OR IGNORE INTO accounts VALUES ('alice', 1000), ('bob', 1000);
