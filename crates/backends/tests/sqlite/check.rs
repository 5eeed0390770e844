//! What `semel check` finds.

use semel_backends::sqlite::{Durability, SqliteConfig, SqliteStore};
use semel_core::diagnosis::{Diagnose, Needs, Severity};
use sqlx::sqlite::SqlitePoolOptions;

use super::Database;

async fn severities(store: &SqliteStore) -> Vec<(&'static str, Severity)> {
    let all = store.diagnose(&Needs::default()).await.unwrap();
    all.iter().map(|one| (one.code, one.severity)).collect()
}

#[tokio::test]
async fn each_mistake_is_found() {
    use Severity::{Advice, Good, Problem};
    let database = Database::unmigrated().await;
    // Fast, as a test may be.
    let rest = [("journal", Good), ("durability", Advice)];
    let found = severities(&database.store).await;
    assert_eq!(found, [&[("schema", Problem)], &rest[..]].concat());
    database.store.migrate().await.unwrap();
    let found = severities(&database.store).await;
    assert_eq!(found, [&[("schema", Good)], &rest[..]].concat());

    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/shop.db", folder.path().display());
    let safe = SqliteConfig::new(&url).unwrap().durability(Durability::PowerLoss);
    let found = severities(&safe.connect().await.unwrap()).await;
    assert!(found.contains(&("durability", Good)), "{found:?}");

    let url = format!("sqlite://{}/plain.db?mode=rwc", folder.path().display());
    let pool = SqlitePoolOptions::new().max_connections(1).connect(&url).await.unwrap();
    let plain = SqliteStore::from_pool(pool);
    let all = plain.diagnose(&Needs::default()).await.unwrap();
    let journal = all.iter().find(|one| one.code == "journal").unwrap();
    assert_eq!(journal.severity, Advice);
    for finding in &all {
        if let Some(sql) = &finding.sql {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql.as_str())).execute(plain.pool()).await.unwrap();
        }
    }
    let found = severities(&plain).await;
    assert!(found.iter().all(|(_, severity)| *severity == Good), "{found:?}");
}
