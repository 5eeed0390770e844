//! A shop of five services. Each order is paid, taken from the stock and confirmed by mail exactly
//! once, whatever is killed in between.
//!
//! ```text
//! buyer ──► serve ──► orders, outbox ──► relay ──► broker ──► payment ──► payments, outbox
//!                                        ▲           │ └────► inventory ──► reservations
//!                                        └───────────┼─────── PaymentTaken
//!                                                    └──────► notification ──► mails
//! ```
//!
//! One command runs all of them, sends a hundred orders twice each, and counts what came of it. It
//! needs a PostgreSQL and a broker that it may write to:
//!
//! ```sh
//! export DATABASE_URL=postgres://postgres@localhost/shop BROKER_URL=redis://localhost:6379
//! cargo run --example orders --features axum,client,kafka,nats,postgres,rabbitmq,redis -- redis
//! ```
//!
//! `orders BROKER ROLE` is one service alone, to be killed and started again as you like: `setup`
//! once, then `serve`, `relay`, `payment`, `inventory`, `notification`; and `buy 1000`. One that does not
//! find its database or broker at the start ends, and is started again by whoever supervises it; one that
//! runs waits for them.

#![expect(clippy::print_stdout, reason = "it tells what came of it")]

mod broker;
mod buyer;
mod consumers;
mod service;

use std::env;
use std::error::Error;
use std::io::stderr;
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};
use semel::backends::postgres::{PostgresConfig, PostgresStore};
use semel::relay::{Relay, Routed, Stop};
use tokio::signal::ctrl_c;
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

use self::broker::Broker;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// What all services share.
#[derive(Clone)]
struct Shop {
    store: PostgresStore,
    broker: Broker,
    address: String,
    /// How long a process that says nothing is taken for alive.
    gone_after: Duration,
}

#[tokio::main]
async fn main() -> Outcome {
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(stderr).init();
    let mut arguments = env::args().skip(1);
    let broker = arguments.next().ok_or("say which broker: kafka, nats, rabbitmq or redis")?;
    let role = arguments.next().unwrap_or_else(|| "all".to_owned());
    let shop = Shop::open(&broker).await?;
    match role.as_str() {
        "all" => shop.run_all(100).await,
        "setup" => shop.set_up().await,
        "serve" => service::serve(&shop).await,
        "buy" => buyer::buy(&shop.address, arguments.next().unwrap_or_default().parse()?).await,
        role => shop.run(role, stopped_by_ctrl_c()).await,
    }
}

impl Shop {
    async fn open(broker: &str) -> Outcome<Self> {
        let variable = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        let database = variable("DATABASE_URL", "postgres://postgres@localhost/shop");
        Ok(Self {
            store: PostgresConfig::new(&database)?.connect().await?,
            broker: Broker::new(broker, env::var("BROKER_URL").ok())?,
            address: format!("127.0.0.1:{}", variable("PORT", "3000")),
            gone_after: Duration::from_millis(variable("GONE_AFTER_MS", "10000").parse()?),
        })
    }

    async fn set_up(&self) -> Outcome {
        self.store.migrate().await?;
        sqlx::raw_sql(include_str!("tables.sql")).execute(self.store.pool()).await?;
        self.broker.set_up().await
    }

    async fn run(&self, role: &str, stop: Stop) -> Outcome {
        match role {
            "relay" => {
                let topics = "{aggregate_type}.events".parse()?;
                let sink = Routed::new(self.broker.sink().await?, topics);
                Relay::new("shop", self.store.source("shop").await?, sink).run(stop).await?;
            }
            _ => {
                let (topic, consumer) = consumers::of(role, &self.store)?;
                let subscription = self.broker.subscribe(role, topic, self.gone_after).await?;
                consumer.run(subscription, stop).await?;
            }
        }
        Ok(())
    }

    /// All services in this process, until so many orders have come to their end.
    async fn run_all(&self, orders: usize) -> Outcome {
        self.set_up().await?;
        let before = self.finished().await?;
        let (stopper, stop) = Stop::new();
        let roles = ["relay", "payment", "inventory", "notification"];
        let services = try_join_all(roles.map(|role| self.run(role, stop.clone())));
        let customers = async {
            buyer::buy(&self.address, orders).await?;
            let told = async {
                while self.finished().await? < before + orders {
                    sleep(Duration::from_millis(100)).await;
                }
                Outcome::Ok(())
            };
            timeout(Duration::from_secs(60), told).await??;
            stopper.stop();
            Ok(())
        };
        tokio::select! {
            ended = service::serve(self) => return ended,
            ended = try_join(services, customers) => ended?,
        };
        self.report().await
    }

    /// How many orders have been reserved and confirmed.
    async fn finished(&self) -> Outcome<usize> {
        let sql = "SELECT least((SELECT count(*) FROM mails), (SELECT count(*) FROM reservations))";
        let count = sqlx::query_scalar::<_, i64>(sql).fetch_one(self.store.pool()).await?;
        Ok(usize::try_from(count)?)
    }

    /// Counts what came of it, by the rows.
    async fn report(&self) -> Outcome {
        let rows: Vec<(String, i64)> =
            sqlx::query_as(include_str!("report.sql")).fetch_all(self.store.pool()).await?;
        for (what, count) in &rows {
            println!("{what:28}{count:8}");
        }
        let wrong = rows.iter().any(|(what, count)| what.starts_with("wrong") && *count != 0);
        if wrong { Err("something is lost or doubled".into()) } else { Ok(()) }
    }
}

/// The first Ctrl-C lets what is in hand finish, the second one leaves at once.
fn stopped_by_ctrl_c() -> Stop {
    let (stopper, stop) = Stop::new();
    tokio::spawn(async move {
        while ctrl_c().await.is_ok() {
            stopper.stop();
        }
    });
    stop
}
