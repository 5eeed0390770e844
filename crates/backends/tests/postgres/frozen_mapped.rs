//! A relay of a mapped table that is stopped while it settles keeps nobody waiting for long.

use semel_backends::mapped::Mapping;
use semel_core::{Limit, Outcome, Settlement, Source};
use semel_testkit::proxy::Proxy;
use tokio::time::timeout;

use super::frozen::{SOON, somebody_waits};
use super::{connect, database};

const TABLE: &str = "create table outbox (id bigserial primary key, aggregate_type text,
    aggregate_id text, event_type text, payload text, created_at timestamptz default now(),
    published_at timestamptz);
    insert into outbox (aggregate_type, aggregate_id, event_type, payload)
    values ('order', '42', 'OrderPlaced', '{}')";

/// The server has given it the lock of the owner, and it never learns that.
#[tokio::test]
async fn the_settlement_of_a_frozen_relay_is_ended() {
    let database = database!();
    database.run(TABLE).await;
    let address = database.address();
    let proxy = Proxy::start(address).await;
    let frozen = connect(&database.url().replace(address, &proxy.address())).await;
    let mapping = Mapping::transactional_outbox("outbox");
    let mut source = frozen.mapped_source("orders", &mapping).await.unwrap();
    let batch = source.next_batch(Limit::default()).await.unwrap().deliveries;
    let settlement = Settlement { receipt: batch[0].receipt, outcome: Outcome::Delivered };

    let mut lock = database.begin().await;
    let owner = "select epoch from semel.mapped where pipeline = 'orders' for update";
    sqlx::query(owner).fetch_one(&mut *lock).await.unwrap();
    let stuck = tokio::spawn(async move { source.settle(&[settlement]).await });
    somebody_waits(&database).await;
    proxy.swallow_replies(true);
    lock.rollback().await.unwrap();

    let taken_over = timeout(SOON, database.store.mapped_source("orders", &mapping)).await;
    let mut source = taken_over.expect("the lock was given up").unwrap();
    assert_eq!(source.next_batch(Limit::default()).await.unwrap().deliveries.len(), 1);
    stuck.abort();
}
