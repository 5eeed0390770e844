//! The one place where technologies meet: which databases and sinks there are, what they are
//! called, and how each is connected. Help, configuration and commands read these lists.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_backends::ndjson::{FileSink, StdoutSink};
use semel_backends::sqlite::{self, SqliteConfig, SqliteStore};
use semel_core::outbox::AppendError;
use semel_core::{AdminStore, Event, Failure, Sink, Source};

use crate::config::Section;

/// A kind of database, known by the beginning of its URL.
#[derive(Debug)]
pub(crate) struct DatabaseKind {
    /// How its URLs begin; the first is the usual way.
    pub(crate) schemes: &'static [&'static str],
    /// Its tables as SQL.
    pub(crate) schema: fn() -> String,
    /// Opens it.
    pub(crate) connect: fn(String, Missing) -> Connecting<Box<dyn Database>>,
}

/// What to do about a database file that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

/// A connection in the making.
pub(crate) type Connecting<T> = BoxFuture<'static, Result<T, Failure>>;

/// A kind of sink, known by its `type`.
#[derive(Debug)]
pub(crate) struct SinkKind {
    /// The value of `type`.
    pub(crate) name: &'static str,
    /// Reads its other keys.
    pub(crate) parse: fn(&mut Section<'_>) -> Option<ConnectSink>,
}

/// Connects a sink that was configured.
pub(crate) type ConnectSink = Arc<dyn Fn() -> Connecting<Arc<dyn Sink>> + Send + Sync>;

/// All databases.
pub(crate) const DATABASES: &[DatabaseKind] = &[
    DatabaseKind {
        schemes: &["sqlite://"],
        schema: sqlite::schema_sql,
        connect: |url, missing| Box::pin(connect_sqlite(url, missing)),
    },
    #[cfg(feature = "postgres")]
    DatabaseKind {
        schemes: &["postgres://", "postgresql://"],
        schema: semel_backends::postgres::schema_sql,
        connect: |url, _| Box::pin(connect_postgres(url)),
    },
    #[cfg(feature = "mysql")]
    DatabaseKind {
        schemes: &["mysql://", "mariadb://"],
        schema: semel_backends::mysql::schema_sql,
        connect: |url, _| Box::pin(connect_mysql(url)),
    },
];

/// How the URLs of databases begin that were not built in, and the feature that would do so.
const LEFT_OUT: &[(&str, &str)] = &[
    #[cfg(not(feature = "postgres"))]
    ("postgres", "postgres"),
    #[cfg(not(feature = "mysql"))]
    ("mysql", "mysql"),
    #[cfg(not(feature = "mysql"))]
    ("mariadb", "mysql"),
];

/// All sinks.
pub(crate) const SINKS: &[SinkKind] = &[
    SinkKind {
        name: "stdout",
        parse: |_| Some(Arc::new(|| Box::pin(async { Ok(Arc::new(StdoutSink) as Arc<dyn Sink>) }))),
    },
    SinkKind {
        name: "file",
        parse: |section| {
            let path = section.required("path")?;
            Some(Arc::new(move || Box::pin(connect_file(path.clone()))))
        },
    },
];

/// What the commands need of a database.
#[async_trait]
pub(crate) trait Database: Send + Sync {
    /// Creates or upgrades the tables; says which migrations were applied.
    async fn migrate(&self) -> Result<Vec<&'static str>, Failure>;

    /// The migrations that are missing.
    async fn missing_migrations(&self) -> Result<Vec<&'static str>, Failure>;

    /// Writes one event in a transaction of its own.
    async fn send(&self, event: Event) -> Result<(), SendError>;

    /// The outbox, for the relay of a pipeline.
    async fn source(&self, pipeline: &str) -> Result<Box<dyn Source>, Failure>;

    /// The outbox, for the operators of a pipeline.
    fn admin(&self, pipeline: &str) -> Box<dyn AdminStore>;
}

/// Why an event was not sent.
#[derive(Debug)]
pub(crate) enum SendError {
    /// It was not written.
    Append(AppendError),
    /// Nobody knows whether it was written.
    Commit(Failure),
}

impl DatabaseKind {
    /// Which kind a URL means. The URL may hold a password, so no answer repeats it.
    pub(crate) fn of_url(url: &str) -> Result<&'static Self, String> {
        let begins = |kind: &&Self| kind.schemes.iter().any(|scheme| url.starts_with(scheme));
        DATABASES.iter().find(begins).ok_or_else(|| {
            let schemes: Vec<_> = DATABASES.iter().map(|kind| kind.schemes[0]).collect();
            let mut why = format!("the URL must begin with {}", schemes.join(" or "));
            if let Some((_, feature)) = LEFT_OUT.iter().find(|(begin, _)| url.starts_with(begin)) {
                why += &format!("; this program was built without the feature {feature:?}");
            }
            why
        })
    }
}

/// A URL without what is secret in it: user, password and parameters.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
            format!("{scheme}://{rest}")
        }
        None => "(no URL)".into(),
    }
}

async fn connect_sqlite(mut url: String, missing: Missing) -> Result<Box<dyn Database>, Failure> {
    if missing == Missing::Refuse && !url.contains("mode=") {
        url += if url.contains('?') { "&mode=rw" } else { "?mode=rw" };
    }
    Ok(Box::new(SqliteConfig::new(&url)?.connect().await?))
}

#[cfg(feature = "postgres")]
async fn connect_postgres(url: String) -> Result<Box<dyn Database>, Failure> {
    Ok(Box::new(semel_backends::postgres::PostgresConfig::new(&url)?.connect().await?))
}

#[cfg(feature = "mysql")]
async fn connect_mysql(url: String) -> Result<Box<dyn Database>, Failure> {
    Ok(Box::new(semel_backends::mysql::MysqlConfig::new(&url)?.connect().await?))
}

/// Every store has the same methods, with types of its own. Only what is known about missing
/// migrations differs.
macro_rules! implement_database {
    ($store:ty, $this:ident => $missing:expr) => {
        #[async_trait]
        impl Database for $store {
            async fn migrate(&self) -> Result<Vec<&'static str>, Failure> {
                self.migrate().await
            }

            async fn missing_migrations(&self) -> Result<Vec<&'static str>, Failure> {
                let $this = self;
                $missing
            }

            async fn send(&self, event: Event) -> Result<(), SendError> {
                let begun = self.begin().await;
                let mut tx =
                    begun.map_err(|failure| SendError::Append(AppendError::Store(failure)))?;
                self.outbox().append(&mut tx, event).await.map_err(SendError::Append)?;
                tx.commit().await.map_err(commit_failed)
            }

            async fn source(&self, pipeline: &str) -> Result<Box<dyn Source>, Failure> {
                Ok(Box::new(self.source(pipeline).await?))
            }

            fn admin(&self, pipeline: &str) -> Box<dyn AdminStore> {
                Box::new(self.admin(pipeline))
            }
        }
    };
}

implement_database!(SqliteStore, store => Ok(store.status().await?.missing));
#[cfg(feature = "postgres")]
implement_database!(
    semel_backends::postgres::PostgresStore,
    store => Ok(store.status().await?.missing)
);
#[cfg(feature = "mysql")]
implement_database!(semel_backends::mysql::MysqlStore, _store => Err(unknown_to_mysql()));

#[cfg(feature = "mysql")]
fn unknown_to_mysql() -> Failure {
    Failure::refused("E-MYSQL-STATUS", "MySQL: which migrations are missing cannot be told")
        .with_fix("semel migrate up: it applies what is missing, and is safe to repeat")
}

fn commit_failed(error: sqlx::Error) -> SendError {
    let failure = Failure::unavailable("E-COMMIT", "the commit was not confirmed")
        .with_source(error)
        .with_fix("look for it with `semel events list`; with --key it is safe to send it again");
    SendError::Commit(failure)
}

async fn connect_file(path: String) -> Result<Arc<dyn Sink>, Failure> {
    Ok(Arc::new(FileSink::open(path).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_urls_are_not_shown() {
        let cases = [
            ("sqlite://shop.db", "sqlite://shop.db"),
            ("postgres://me:p@ss@db:5432/shop?password=x", "postgres://db:5432/shop"),
            ("hunter2", "(no URL)"),
        ];
        for (url, expected) in cases {
            assert_eq!(shown(url), expected);
        }
    }
}
