//! A handler that takes no notice of an error which ended its transaction: nothing of the effect is there, so
//! the message must not be confirmed.

use std::future::Future;
use std::pin::Pin;

use semel_core::{Fault, Message, Published, Sink, Verdict};

use super::order;

/// Each as a message.
fn messages(orders: &[i64]) -> Vec<Message> {
    orders.iter().map(|id| Message::first("orders", order(*id))).collect()
}

fn codes(published: Published, count: usize) -> Vec<Option<&'static str>> {
    let code = |verdict: Verdict| match verdict {
        Verdict::Failed(failure) => {
            assert_eq!(failure.fault(), Fault::Transient);
            Some(failure.code())
        }
        other => {
            assert!(matches!(other, Verdict::Confirmed), "{other:?}");
            None
        }
    };
    match published {
        Published::All => vec![None; count],
        Published::None(failure) => vec![Some(failure.code()); count],
        Published::Each(verdicts) => verdicts.into_iter().map(code).collect(),
    }
}

type Doing<'t> = Pin<Box<dyn Future<Output = ()> + Send + 't>>;

macro_rules! ignored {
    ($database:ident, $driver:ident, $fresh:expr, |$tx:ident| $ends:expr) => {
        mod $database {
            use semel_backends::$database::{Transaction, $driver};
            use semel_relay::{Consumer, handler_fn};

            use super::*;

            type Tx = Transaction<'static, $driver>;

            const ENDS: fn(&mut Tx) -> Doing<'_> = |$tx| Box::pin(async move { $ends });

            #[tokio::test]
            async fn an_effect_that_was_undone_is_not_confirmed() {
                let Some(database) = $fresh else { return };
                let store = database.store.clone();
                let mut tx = store.begin().await.unwrap();
                let table = "create table payments (order_id bigint primary key)";
                sqlx::raw_sql(table).execute(&mut *tx).await.unwrap();
                tx.commit().await.unwrap();
                let handler = handler_fn(|tx: &mut Tx, message: &Message| {
                    Box::pin(async move {
                        let id: i64 = message.event.aggregate_id.parse().unwrap();
                        let sql = format!("insert into payments values ({id})");
                        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut **tx).await?;
                        if id == 2 {
                            ENDS(tx).await;
                        }
                        Ok(Default::default())
                    })
                });
                let consumer = Consumer::new("payments", store.inbox(), handler);
                let undone = Some("E-HANDLER-UNDONE");
                for _ in 0..2 {
                    let published = consumer.publish(&messages(&[2])).await;
                    assert_eq!(codes(published, 1), [undone]);
                }
                let published = consumer.publish(&messages(&[1, 2])).await;
                assert_eq!(codes(published, 2), [None, undone]);
                let published = consumer.publish(&messages(&[3, 4])).await;
                assert_eq!(codes(published, 2), [None, None], "the connection is as it was");
                let mut tx = store.begin().await.unwrap();
                let paid = sqlx::query_scalar("select order_id from payments order by order_id");
                let paid: Vec<i64> = paid.fetch_all(&mut *tx).await.unwrap();
                assert_eq!(paid, [1, 3, 4]);
            }
        }
    };
}

// What is there already.
#[cfg(feature = "postgres")]
ignored!(postgres, Postgres, crate::postgres::Database::new().await, |tx| {
    let again = sqlx::raw_sql("insert into payments values (2)").execute(&mut **tx).await;
    assert!(again.is_err());
});
// As InnoDB does to the victim of a deadlock.
#[cfg(feature = "mysql")]
ignored!(mysql, MySql, crate::mysql::Database::new().await, |tx| {
    sqlx::raw_sql("rollback").execute(&mut **tx).await.unwrap();
});
// As SQLite does when its disk is full.
#[cfg(feature = "sqlite")]
ignored!(sqlite, Sqlite, Some(crate::sqlite::Database::new().await), |tx| {
    sqlx::raw_sql("rollback").execute(&mut **tx).await.unwrap();
});
