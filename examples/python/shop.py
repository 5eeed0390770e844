"""An order service in Python that knows nothing of semel: one INSERT more in its own transaction.

Nothing to install: http.server and sqlite3 come with Python.
"""

import json
import os
import sqlite3
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATABASE = os.environ["DATABASE_URL"].removeprefix("sqlite://")


class Shop(BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        order["id"] = str(uuid.uuid4())
        database = sqlite3.connect(DATABASE, timeout=10)
        with database:  # one transaction: both rows, or neither
            database.execute("insert into orders (id, total) values (?, ?)", (order["id"], order["total"]))
            database.execute(
                "insert into semel_outbox (aggregate_type, aggregate_id, event_type, payload) values (?, ?, ?, ?)",
                ("order", order["id"], "OrderPlaced", json.dumps(order)),
            )
        database.close()
        body = json.dumps(order).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with sqlite3.connect(DATABASE) as database:
        database.execute("create table if not exists orders (id text primary key, total integer not null)")
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Shop).serve_forever()
