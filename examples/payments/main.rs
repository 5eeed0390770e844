//! A bank whose API takes payments and moves money between accounts: each of them once, whenever
//! the process is killed.
//!
//! ```text
//! client ──► POST /payments, POST /transfers ──► BEGIN ── rows ── event ── key and answer ── COMMIT
//!   └── sends it again with the same key until there is an answer
//! ```
//!
//! One command starts the service on a database in a temporary folder, kills it with SIGKILL at
//! every step of both requests, starts it again, and counts what is in the books. It needs no server:
//!
//! ```sh
//! cargo run --example payments --features axum,client,sqlite
//! ```
//!
//! `payments serve sqlite://bank.db 127.0.0.1:3000` is the service alone, to be killed as you like:
//!
//! ```sh
//! curl -i 127.0.0.1:3000/transfers -H 'Authorization: alice' -H 'Idempotency-Key: rent-november' \
//!      --json '{"from": "alice", "to": "bob", "cents": 25, "reference": "rent"}'
//! ```

#![expect(clippy::print_stdout, reason = "it tells what comes of it")]

mod bank;
mod story;

use std::env;
use std::error::Error;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => story::tell().await,
        ["serve", database, address] => bank::serve(database, address, "").await,
        ["serve", database, address, step] => bank::serve(database, address, step).await,
        _ => Err("nothing for the whole story, or: serve DATABASE ADDRESS".into()),
    }
}
