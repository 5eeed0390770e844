// An order service in Node that knows nothing of semel: one INSERT more in its own transaction.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
await pool.query("create table if not exists orders (id text primary key, total integer not null)");

async function place(order) {
  const client = await pool.connect();
  try {
    await client.query("begin"); // one transaction: both rows, or neither
    await client.query("insert into orders (id, total) values ($1, $2)", [order.id, order.total]);
    await client.query(
      "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload) values ($1, $2, $3, $4)",
      ["order", order.id, "OrderPlaced", JSON.stringify(order)],
    );
    await client.query("commit");
  } catch (error) {
    await client.query("rollback");
    throw error;
  } finally {
    client.release();
  }
}

createServer(async (request, response) => {
  try {
    const order = { ...JSON.parse(await text(request)), id: randomUUID() };
    await place(order);
    response.writeHead(201, { "Content-Type": "application/json" }).end(JSON.stringify(order));
  } catch (error) {
    response.writeHead(500).end(error.message);
  }
}).listen(Number(process.env.PORT), "127.0.0.1");
