//! Names that the tables of consumers have no room for.

use semel_core::inbox::Tally;
use semel_core::marks::{Step, apply_if_version};
use semel_core::{EventId, Failure, Fault, InboxStore, Marks};

use super::database;

/// `INSERT IGNORE` would cut them: every later version would pass for applied.
#[tokio::test]
async fn marks_with_names_that_would_be_cut_are_refused() {
    let database = database!();
    let marks = database.store.marks();
    let (most, more) = ("ü".repeat(255), "ü".repeat(256));
    let mut tx = database.begin().await;
    for (consumer, scope, fault) in
        [(&*more, "book", Fault::Misconfigured), ("prices", &*more, Fault::Refused)]
    {
        let step = Step { scope, from: 1, to: 2 };
        let refused = [
            marks.mark(&mut tx, consumer, scope).await.map(drop),
            marks.advance(&mut tx, consumer, scope, 1).await.map(drop),
            marks.step_all(&mut tx, consumer, &[step]).await.map(drop),
        ];
        for failure in refused.map(Result::unwrap_err) {
            assert_eq!(failure.fault(), fault, "{failure}");
            assert!(failure.fix().is_some_and(|fix| fix.contains("255")), "{failure:?}");
        }
    }
    assert_eq!(database.number("SELECT count(*) FROM semel_marks").await, 0);
    for (version, applies) in [(1, true), (2, true), (2, false), (3, true)] {
        let done = apply_if_version(&marks, &mut tx, &most, &most, version, |_| {
            Box::pin(async { Ok::<_, Failure>(Default::default()) })
        });
        assert_eq!(done.await.unwrap().is_duplicate(), !applies, "version {version}");
    }
    tx.commit().await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM semel_marks").await, 1);
}

/// A server that is not strict would cut them as well.
#[tokio::test]
async fn an_inbox_refuses_a_consumer_whose_name_would_be_cut() {
    let database = database!();
    let (inbox, consumer, id) = (database.store.inbox(), "x".repeat(256), EventId::now());
    let mut tx = inbox.begin().await.unwrap();
    sqlx::raw_sql("SET SESSION sql_mode = ''").execute(&mut *tx).await.unwrap();
    let refused = [
        inbox.record(&mut tx, &consumer, id).await.map(drop),
        inbox.record_all(&mut tx, &consumer, &[id, EventId::now()]).await.map(drop),
        inbox.count(&consumer, Tally { applied: 1, duplicates: 0 }).await,
    ];
    for failure in refused.map(Result::unwrap_err) {
        let found = (failure.fault(), failure.code());
        assert_eq!(found, (Fault::Misconfigured, "E-PIPELINE-NAME"), "{failure}");
    }
    inbox.rollback(tx).await;
    assert_eq!(database.number("SELECT count(*) FROM semel_inbox").await, 0);
}
