//! The story: each request is sent once by its client, the service is killed at one of its steps and
//! started again, and the client, who repeats the request under the same key, gets an answer.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use semel::Schedule;
use semel::backends::sqlite::{SqliteConfig, SqliteStore};
use semel::http::client::Client;
use semel::memory::MemoryBroker;
use semel::relay::{Relay, Routed, Stop};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::Outcome;
use crate::bank::{ANSWERED, COMMITTED, PAYMENT, READY, TRANSFER};

const CENTS: i64 = 25;

pub(crate) async fn tell() -> Outcome {
    let folder = tempfile::tempdir()?;
    let story = Story::begin(&format!("sqlite://{}", folder.path().join("bank.db").display()))?;
    println!("POST /payments, killed when …");
    for step in PAYMENT {
        let body = json!({ "customer": "alice", "cents": CENTS, "reference": step });
        story.kill_at(step, "payments", body).await?;
    }
    println!("POST /transfers, killed when …");
    for step in TRANSFER {
        let body = json!({ "from": "alice", "to": "bob", "cents": CENTS, "reference": step });
        story.kill_at(step, "transfers", body).await?;
    }
    story.close_the_books().await
}

struct Story {
    database: String,
    address: String,
}

impl Story {
    fn begin(database: &str) -> Outcome<Self> {
        // Free now; whoever takes it before the service does is waited for.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        Ok(Self { database: database.to_owned(), address })
    }

    async fn kill_at(&self, step: &str, table: &str, body: Value) -> Outcome {
        let mut service = self.start(step)?;
        let client = tokio::spawn(send(format!("http://{}/{table}", self.address), body));
        service.wait_for(step)?;
        service.kill()?;
        let before = self.count(table, step).await?;

        let _service = self.start("")?;
        let answer = client.await??;
        let after = self.count(table, step).await?;
        let kept = if answer.is_replay { "the kept answer" } else { "it ran again" };
        println!(
            "  {step:30} rows: {before}   started again: {}, {kept:15}   rows: {after}",
            answer.status
        );
        let is_committed = [COMMITTED, ANSWERED].contains(&step);
        let expected = (i64::from(is_committed), 201, is_committed, 1);
        let found = (before, answer.status, answer.is_replay, after);
        match found == expected {
            true => Ok(()),
            false => Err(format!("{found:?} is not {expected:?}").into()),
        }
    }

    fn start(&self, step: &str) -> Outcome<Service> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut command = Command::new(env::current_exe()?);
            command.args(["serve", &self.database, &self.address, step]);
            let mut process = command.stdout(Stdio::piped()).spawn()?;
            let says = process.stdout.take().ok_or("it has no output")?;
            let mut service = Service { process, says: BufReader::new(says) };
            match service.wait_for(READY) {
                Ok(()) => return Ok(service),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    async fn count(&self, table: &str, reference: &str) -> Outcome<i64> {
        let sql = match table {
            "payments" => "SELECT count(*) FROM payments WHERE reference = ?1",
            _ => "SELECT count(*) FROM transfers WHERE reference = ?1",
        };
        let store = self.open().await?;
        Ok(sqlx::query_scalar(sql).bind(reference).fetch_one(store.pool()).await?)
    }

    async fn open(&self) -> Outcome<SqliteStore> {
        Ok(SqliteConfig::new(&self.database)?.connect().await?)
    }

    /// What is in the accounts, and what others are told.
    async fn close_the_books(&self) -> Outcome {
        let store = self.open().await?;
        let accounts = sqlx::query_as("SELECT name, cents FROM accounts ORDER BY name");
        let accounts: Vec<(String, i64)> = accounts.fetch_all(store.pool()).await?;
        let (payments, transfers) = (PAYMENT.len(), TRANSFER.len());
        let moved = CENTS * i64::try_from(transfers)?;
        let expected = [("alice".to_owned(), 1000 - moved), ("bob".to_owned(), 1000 + moved)];

        let broker = MemoryBroker::new();
        let sink = Routed::new(broker.clone(), "{event_type}".parse()?);
        Relay::new("bank", store.source("bank").await?, sink).drain(Stop::never()).await?;
        let told = |topic: &str| {
            broker.messages().iter().filter(|message| message.topic.as_str() == topic).count()
        };
        let events = (told("PaymentTaken"), told("MoneyMoved"));
        println!("{payments} payments and {transfers} transfers were asked for, each once:");
        println!("  accounts   {accounts:?}");
        println!("  events     {} PaymentTaken, {} MoneyMoved", events.0, events.1);
        if accounts != expected || events != (payments, transfers) {
            return Err(format!("{expected:?} and an event for each was expected").into());
        }
        println!("every payment was taken once, and the money has moved once");
        Ok(())
    }
}

/// A running service; killed when nobody needs it any more.
struct Service {
    process: Child,
    says: BufReader<ChildStdout>,
}

impl Service {
    fn wait_for(&mut self, word: &str) -> Outcome {
        let mut line = String::new();
        block_in_place(|| self.says.read_line(&mut line))?;
        match line.trim_end() == word {
            true => Ok(()),
            false => Err(format!("the service said {line:?} instead of {word:?}").into()),
        }
    }

    /// By SIGKILL: it can do nothing about it.
    fn kill(&mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill().ok();
    }
}

struct Answer {
    status: u16,
    is_replay: bool,
}

/// Sends it under one key until there is an answer.
async fn send(url: String, body: Value) -> Outcome<Answer> {
    let http = reqwest::Client::new();
    let patience = Schedule::new(vec![Duration::from_millis(100); 600]);
    let client = Client::new(http.clone()).with_schedule(patience);
    let request = http.post(url).header(AUTHORIZATION, "alice");
    let request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
    let response = client.send(request.build()?).await?;
    let is_replay = response.headers().contains_key("idempotent-replayed");
    Ok(Answer { status: response.status().as_u16(), is_replay })
}
