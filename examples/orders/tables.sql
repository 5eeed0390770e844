CREATE TABLE IF NOT EXISTS orders (
    id       TEXT PRIMARY KEY,
    customer TEXT NOT NULL,
    product  TEXT NOT NULL,
    quantity BIGINT NOT NULL,
    cents    BIGINT NOT NULL
);

-- Of the payment service. Nothing here would keep a second payment of an order out.
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS payments (
    id       BIGSERIAL PRIMARY KEY,
    order_id TEXT NOT NULL,
    cents    BIGINT NOT NULL
);
INSERT INTO accounts VALUES ('alice', 0), ('bob', 0), ('carol', 0), ('shop', 0) ON CONFLICT DO NOTHING;

-- Of the inventory service.
CREATE TABLE IF NOT EXISTS stock (product TEXT PRIMARY KEY, reserved BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS reservations (
    id       BIGSERIAL PRIMARY KEY,
    order_id TEXT NOT NULL,
    quantity BIGINT NOT NULL
);
INSERT INTO stock VALUES ('book', 0), ('pen', 0) ON CONFLICT DO NOTHING;

-- Of the notification service.
CREATE TABLE IF NOT EXISTS mails (
    id       BIGSERIAL PRIMARY KEY,
    order_id TEXT NOT NULL,
    text     TEXT NOT NULL
);
