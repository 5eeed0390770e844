SELECT 'orders', count(*) FROM orders
UNION ALL SELECT 'payments', count(*) FROM payments
UNION ALL SELECT 'reservations', count(*) FROM reservations
UNION ALL SELECT 'mails', count(*) FROM mails
UNION ALL SELECT 'cents of the orders', coalesce(sum(cents), 0)::bigint FROM orders
UNION ALL SELECT 'cents of the shop', balance FROM accounts WHERE name = 'shop'
UNION ALL SELECT 'wrong: money made or lost', sum(balance)::bigint FROM accounts
UNION ALL SELECT 'wrong: cents of the shop',
    (SELECT balance FROM accounts WHERE name = 'shop') - coalesce(sum(cents), 0)::bigint FROM orders
UNION ALL SELECT 'wrong: stock',
    (SELECT sum(reserved) FROM stock)::bigint - coalesce(sum(quantity), 0)::bigint FROM orders
UNION ALL SELECT 'wrong: payments', count(*)
    FROM orders WHERE (SELECT count(*) FROM payments WHERE order_id = orders.id) <> 1
UNION ALL SELECT 'wrong: reservations', count(*)
    FROM orders WHERE (SELECT count(*) FROM reservations WHERE order_id = orders.id) <> 1
UNION ALL SELECT 'wrong: mails', count(*)
    FROM orders WHERE (SELECT count(*) FROM mails WHERE order_id = orders.id) <> 1
