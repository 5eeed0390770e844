//! A carrier that is stopped inside a transaction keeps nobody waiting for long.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use semel_testkit::workload::{delivered_numbers, events};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::connect;
use super::messages;

const SOON: Duration = Duration::from_secs(20);

/// A process with a carrier, which stands still from when it is told to until this is dropped.
struct Process {
    freeze: Option<oneshot::Sender<()>>,
    frozen: mpsc::Receiver<()>,
    _end: mpsc::Sender<()>,
}

impl Process {
    fn start(url: String) -> Self {
        let (freeze, told) = oneshot::channel::<()>();
        let (tell, frozen) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            // Nothing moves in such a runtime unless somebody waits in it.
            let carrying = runtime.block_on(async {
                let carrying = connect(&url).await.carry_messages("frozen").await.unwrap();
                drop(told.await);
                carrying
            });
            tell.send(()).unwrap();
            assert!(ended.recv().is_err(), "nobody sends anything");
            drop(carrying);
        });
        Self { freeze: Some(freeze), frozen, _end: end }
    }

    fn freeze(&mut self) {
        drop(self.freeze.take());
        self.frozen.recv().unwrap();
    }
}

#[tokio::test]
async fn the_messages_of_a_frozen_carrier_are_carried_by_another() {
    let database = messages!();
    let mut frozen = Process::start(database.url());
    let read = "select active from pg_replication_slots where database = current_database()";
    database.wait_for("it carries", read).await;

    let mut lock = database.begin().await;
    sqlx::raw_sql("lock table semel.outbox in share mode").execute(&mut *lock).await.unwrap();
    database.emit(&events("a", 0..3)).await;
    let waits = "select count(*) > 0 from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    database.wait_for("it adds to the outbox", waits).await;
    frozen.freeze();
    lock.rollback().await.unwrap();
    let open = "select count(*) > 0 from pg_stat_activity
        where datname = current_database() and state = 'idle in transaction'";
    database.wait_for("its transaction stays open", open).await;
    // As the server does after wal_sender_timeout.
    database.cut_tail().await;

    let carrying = database.carrying().await;
    timeout(SOON, carrying.caught_up()).await.expect("the rows were given up").unwrap();
    assert_eq!(delivered_numbers(&database.relay().await.deliver_all(10).await), [0, 1, 2]);
}
