//! The one place where technologies meet: which databases and sinks there are, what they are
//! called, and how each is connected. Help, configuration and commands read these lists.

mod arrivals;
mod connect;
#[cfg(any(feature = "mqtt", feature = "rabbitmq"))]
mod headers;
mod keys;
mod later;
#[cfg(any(
    feature = "aws",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats",
    feature = "proxy",
    feature = "rabbitmq",
    feature = "redis"
))]
mod logins;
#[cfg(feature = "postgres")]
mod postgres;
mod shared;
mod sinks;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_backends::mapped::{LaneOrder, Mapping};
use semel_backends::sqlite::{self, SqliteConfig, SqliteStore};
use semel_core::coordination::{Coordinator, Share};
use semel_core::diagnosis::Diagnose;
use semel_core::inbox::Applied;
use semel_core::letters::LettersAdmin;
use semel_core::outbox::AppendError;
use semel_core::{AdminStore, Event, EventId, Failure, Source};

pub(crate) use self::arrivals::{ReadSink, arrivals_in};
pub(crate) use self::connect::{ConnectSink, ShareSinks};
pub(crate) use self::keys::{Keys, connect_keys};
#[cfg(feature = "proxy")]
pub(crate) use self::logins::both_or_neither;
pub(crate) use self::shared::Identity;
pub(crate) use self::sinks::{SINKS, SinkKind, missing_feature, sinks_in_words};

/// A kind of database, known by the beginning of its URL.
#[derive(Debug)]
pub(crate) struct DatabaseKind {
    /// What it is called where there is no URL.
    pub(crate) name: &'static str,
    /// How its URLs begin; the first is the usual way.
    pub(crate) schemes: &'static [&'static str],
    /// Its tables as SQL.
    pub(crate) schema: fn() -> String,
    /// How its outbox is divided, where it can be.
    pub(crate) partitions: Option<Partitions>,
    /// How its inbox is divided, where it can be.
    pub(crate) inbox_partitions: Option<Partitions>,
    /// What drops them, as SQL.
    pub(crate) drop: fn() -> String,
    /// Its roles as SQL; their names begin with what is given.
    pub(crate) grants: fn(&str) -> Result<String, Failure>,
    /// Whether a writer can wake relays of other processes.
    pub(crate) notifies: bool,
    /// Whether several relays can have a share of a pipeline each.
    pub(crate) divides: bool,
    /// Whether its log tells of new events.
    pub(crate) tails: bool,
    /// How events are written as messages into its log, where they can be.
    pub(crate) messages: Option<Messages>,
    /// Opens it.
    pub(crate) connect: fn(String, Missing) -> Connecting<Box<dyn Database>>,
}

/// How a source learns of new events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// From the log where the server allows it, by polling otherwise.
    #[default]
    Auto,
    /// By polling.
    Poll,
    /// From the log; not to be allowed to is an error.
    Tail,
}

impl Mode {
    /// As they are written.
    pub(crate) const ALL: &[(&'static str, Self)] =
        &[("auto", Self::Auto), ("poll", Self::Poll), ("tail", Self::Tail)];
}

/// How a source learns of new events, and what that may cost the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Following {
    pub(crate) mode: Mode,
    /// How many bytes of log may be kept for it, where that can be said.
    pub(crate) log_budget: Option<u64>,
}

/// Events that are written as messages into the log, and carried into the outbox.
#[derive(Debug)]
pub(crate) struct Messages {
    /// The SQL that makes what keeps them.
    pub(crate) sql: fn() -> String,
    /// Makes it.
    pub(crate) prepare: fn(String) -> Connecting<()>,
    /// Carries them as long as the result lives, for a pipeline; after all there are, if so asked.
    pub(crate) carry: fn(String, String, bool) -> Connecting<Listening>,
    /// Whether somebody carries them.
    pub(crate) is_carried: fn(String) -> Connecting<bool>,
    /// How many nobody has carried.
    pub(crate) count: fn(String) -> Connecting<u64>,
}

/// How an outbox or an inbox is divided into partitions of some time.
#[derive(Debug)]
pub(crate) struct Partitions {
    /// The SQL that does it, after that of the tables.
    pub(crate) sql: fn(Duration) -> String,
    /// Does it; says whether it was not so before.
    pub(crate) apply: fn(String, Duration) -> Connecting<bool>,
}

/// What to do about a database file that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

/// A connection in the making.
pub(crate) type Connecting<T> = BoxFuture<'static, Result<T, Failure>>;

/// All databases.
pub(crate) const DATABASES: &[DatabaseKind] = &[
    DatabaseKind {
        name: "sqlite",
        schemes: &["sqlite://"],
        schema: sqlite::schema_sql,
        partitions: None,
        inbox_partitions: None,
        drop: sqlite::drop_sql,
        grants: sqlite::grants_sql,
        notifies: false,
        divides: false,
        tails: false,
        messages: None,
        connect: |url, missing| Box::pin(connect_sqlite(url, missing)),
    },
    #[cfg(feature = "postgres")]
    DatabaseKind {
        name: "postgres",
        schemes: &["postgres://", "postgresql://"],
        schema: semel_backends::postgres::schema_sql,
        partitions: Some(Partitions {
            sql: semel_backends::postgres::partition_sql,
            apply: |url, span| Box::pin(postgres::partition(url, span)),
        }),
        inbox_partitions: Some(Partitions {
            sql: semel_backends::postgres::inbox_partition_sql,
            apply: |url, span| Box::pin(postgres::partition_inbox(url, span)),
        }),
        drop: semel_backends::postgres::drop_sql,
        grants: semel_backends::postgres::grants_sql,
        notifies: true,
        divides: true,
        tails: true,
        messages: Some(Messages {
            sql: semel_backends::postgres::messages_sql,
            prepare: |url| Box::pin(postgres::prepare_messages(url)),
            carry: |url, pipeline, all| Box::pin(postgres::carry_messages(url, pipeline, all)),
            is_carried: |url| Box::pin(postgres::is_carried(url)),
            count: |url| Box::pin(postgres::count_messages(url)),
        }),
        connect: |url, _| Box::pin(postgres::connect(url)),
    },
    #[cfg(feature = "mysql")]
    DatabaseKind {
        name: "mysql",
        schemes: &["mysql://", "mariadb://"],
        schema: semel_backends::mysql::schema_sql,
        partitions: None,
        inbox_partitions: None,
        drop: semel_backends::mysql::drop_sql,
        grants: semel_backends::mysql::grants_sql,
        notifies: false,
        divides: true,
        tails: true,
        messages: None,
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

/// What the commands need of a database.
#[async_trait]
pub(crate) trait Database: Diagnose {
    /// Creates or upgrades the tables; says which migrations were applied.
    async fn migrate(&self) -> Result<Vec<&'static str>, Failure>;

    /// Which version of the tables is there.
    async fn tables(&self) -> Result<Tables, Failure>;

    /// The pipelines that have ever read the outbox.
    async fn pipelines(&self) -> Result<Vec<String>, Failure>;

    /// How many events there are, in whatever state.
    async fn count_events(&self) -> Result<u64, Failure>;

    /// How many letters consumers have left.
    async fn count_letters(&self) -> Result<u64, Failure>;

    /// Drops the tables, unless there are more events than that by now, or anything else is lost.
    async fn drop_tables(&self, at_most: Option<u64>) -> Result<(), Failure>;

    /// Writes one event in a transaction of its own.
    async fn send(&self, event: Event) -> Result<(), SendError>;

    /// The outbox, for the relay of a share of a pipeline.
    async fn source(
        &self,
        pipeline: &str,
        share: Share,
        following: Following,
    ) -> Result<Box<dyn Source>, Failure>;

    /// Whether the log tells a relay of a pipeline of new events.
    async fn is_tailed(&self, pipeline: &str) -> Result<bool, Failure>;

    /// A table of somebody else's shape, for the relay of a pipeline.
    async fn mapped_source(
        &self,
        pipeline: &str,
        mapping: &Mapping,
    ) -> Result<Box<dyn Source>, Failure>;

    /// Holds a mapping against the real table. Changes nothing.
    async fn check_mapping(&self, mapping: &Mapping) -> Result<LaneOrder, Failure>;

    /// Wakes the sources when a writer notifies, as long as the result lives.
    async fn listen(&self) -> Result<Listening, Failure>;

    /// A member of the group of relays that work on a pipeline.
    fn member(
        &self,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> Result<Box<dyn Coordinator>, Failure>;

    /// Messages that a consumer has applied here, by their ids, from one of them on.
    async fn applied(
        &self,
        consumer: &str,
        from: EventId,
        limit: usize,
    ) -> Result<Vec<Applied>, Failure>;

    /// The idempotency keys.
    fn keys(&self) -> Arc<dyn Keys>;

    /// What the database knows about the work on it.
    fn insight(&self) -> Arc<dyn semel_core::Insight>;

    /// The dead letters of a consumer, for its operators.
    fn letters(&self, consumer: &str) -> Box<dyn AdminStore>;

    /// The outbox, or the mapped table, for the operators of a pipeline.
    fn admin(&self, pipeline: &str, mapping: Option<&Mapping>) -> Box<dyn AdminStore>;
}

/// What keeps listening for notifications, or carrying messages.
pub(crate) type Listening = Box<dyn Send + Sync>;

/// Which version of the tables is there.
pub(crate) struct Tables {
    /// 0 when there are none.
    pub(crate) present: usize,
    /// What this program needs.
    pub(crate) latest: usize,
    /// The migrations that are missing.
    pub(crate) missing: Vec<&'static str>,
}

impl Tables {
    /// Refuses tables that this program cannot work with.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self { present, latest, missing } = self;
        if present > latest {
            let what =
                format!("the tables have version {present}, this semel knows up to {latest}");
            return Err(Failure::misconfigured("E-SCHEMA-NEWER", what)
                .with_fix("use the semel that migrated this database, or a later one"));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let what = match present {
            0 => "there are no tables of semel".into(),
            _ => format!("the tables have version {present}, this semel needs {latest}"),
        };
        Err(Failure::misconfigured("E-SCHEMA-MISSING", what)
            .with_fix("run `semel migrate up --database URL`"))
    }
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
    const PARAMETERS: [char; 2] = ['?', '#'];
    let Some((scheme, rest)) = url.split_once("://") else { return "(no URL)".into() };
    let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    // A password may hold either, and a parameter an @: nobody knows which of them this one is.
    if login.contains(PARAMETERS) {
        return format!("{scheme}://…");
    }
    let place = place.split(PARAMETERS).next().unwrap_or_default();
    format!("{scheme}://{place}")
}

async fn connect_sqlite(mut url: String, missing: Missing) -> Result<Box<dyn Database>, Failure> {
    if missing == Missing::Refuse && !url.contains("mode=") {
        url += if url.contains('?') { "&mode=rw" } else { "?mode=rw" };
    }
    Ok(Box::new(SqliteConfig::new(&url)?.connect().await?))
}

#[cfg(feature = "mysql")]
async fn connect_mysql(url: String) -> Result<Box<dyn Database>, Failure> {
    Ok(Box::new(semel_backends::mysql::MysqlConfig::new(&url)?.connect().await?))
}

/// Every store has the same methods, with types of its own.
macro_rules! implement_database {
    (
        $store:ty, $this:ident, $pipeline:ident, $share:ident, $mode:ident => $source:expr,
        $listening:expr, $tailed:expr
    ) => {
        #[async_trait]
        impl Database for $store {
            async fn migrate(&self) -> Result<Vec<&'static str>, Failure> {
                self.migrate().await
            }

            async fn tables(&self) -> Result<Tables, Failure> {
                let status = self.status().await?;
                let (present, latest) = (status.present, status.latest);
                Ok(Tables { present, latest, missing: status.missing })
            }

            async fn pipelines(&self) -> Result<Vec<String>, Failure> {
                self.pipelines().await
            }

            async fn count_events(&self) -> Result<u64, Failure> {
                self.count_events().await
            }

            async fn count_letters(&self) -> Result<u64, Failure> {
                self.count_letters().await
            }

            async fn drop_tables(&self, at_most: Option<u64>) -> Result<(), Failure> {
                self.drop_tables(at_most).await
            }

            async fn send(&self, event: Event) -> Result<(), SendError> {
                let begun = self.begin().await;
                let mut tx =
                    begun.map_err(|failure| SendError::Append(AppendError::Store(failure)))?;
                self.outbox().append(&mut tx, event).await.map_err(SendError::Append)?;
                tx.commit().await.map_err(commit_failed)
            }

            async fn source(
                &self,
                $pipeline: &str,
                $share: Share,
                $mode: Following,
            ) -> Result<Box<dyn Source>, Failure> {
                let $this = self;
                Ok(Box::new($source))
            }

            async fn listen(&self) -> Result<Listening, Failure> {
                let $this = self;
                $listening
            }

            async fn is_tailed(&self, $pipeline: &str) -> Result<bool, Failure> {
                let $this = self;
                $tailed
            }

            async fn mapped_source(
                &self,
                pipeline: &str,
                mapping: &Mapping,
            ) -> Result<Box<dyn Source>, Failure> {
                Ok(Box::new(self.mapped_source(pipeline, mapping).await?))
            }

            async fn check_mapping(&self, mapping: &Mapping) -> Result<LaneOrder, Failure> {
                self.check_mapping(mapping).await
            }

            fn member(
                &self,
                pipeline: &str,
                shares: u32,
                lease: Duration,
            ) -> Result<Box<dyn Coordinator>, Failure> {
                Ok(Box::new(self.member(pipeline, shares, lease)?))
            }

            async fn applied(
                &self,
                consumer: &str,
                from: EventId,
                limit: usize,
            ) -> Result<Vec<Applied>, Failure> {
                self.applied(consumer, from, limit).await
            }

            fn keys(&self) -> Arc<dyn Keys> {
                Arc::new(self.keys())
            }

            fn insight(&self) -> Arc<dyn semel_core::Insight> {
                Arc::new(self.clone())
            }

            fn letters(&self, consumer: &str) -> Box<dyn AdminStore> {
                Box::new(LettersAdmin::new(self.letters(), consumer))
            }

            fn admin(&self, pipeline: &str, mapping: Option<&Mapping>) -> Box<dyn AdminStore> {
                match mapping {
                    Some(mapping) => Box::new(self.mapped_admin(pipeline, mapping)),
                    None => Box::new(self.admin(pipeline)),
                }
            }
        }
    };
}

implement_database!(SqliteStore, store, pipeline, share, _following => {
    undivided(share)?;
    store.source(pipeline).await?
}, deaf(store), silent(store, pipeline));
#[cfg(feature = "postgres")]
implement_database!(
    semel_backends::postgres::PostgresStore,
    store, pipeline, share, following => {
        use semel_backends::postgres::Tailing;
        let store = match following.log_budget {
            Some(bytes) => &store.clone().with_log_budget(bytes),
            None => store,
        };
        match following.mode {
            Mode::Auto if share == Share::WHOLE => {
                store.tailing_source(pipeline, Tailing::WherePossible).await?
            }
            Mode::Tail => {
                undivided(share)?;
                store.tailing_source(pipeline, Tailing::Required).await?
            }
            Mode::Auto | Mode::Poll => store.source_share(pipeline, share).await?,
        }
    },
    Ok(Box::new(store.listen().await?)),
    store.is_tailed(pipeline).await
);
#[cfg(feature = "mysql")]
implement_database!(
    semel_backends::mysql::MysqlStore,
    store, pipeline, share, following => {
        use semel_backends::mysql::Tailing;
        match following.mode {
            Mode::Auto if share == Share::WHOLE => {
                store.tailing_source(pipeline, Tailing::WherePossible).await?
            }
            Mode::Tail => {
                undivided(share)?;
                store.tailing_source(pipeline, Tailing::Required).await?
            }
            Mode::Auto | Mode::Poll => store.source_share(pipeline, share).await?,
        }
    },
    deaf(store), store.is_tailed(pipeline).await
);

/// The configuration has refused it already.
fn deaf<S>(_: &S) -> Result<Listening, Failure> {
    Err(Failure::misconfigured("E-NOTIFY", "this database has no notifications"))
}

/// A database whose log is not read.
fn silent<S>(_: &S, _: &str) -> Result<bool, Failure> {
    Ok(false)
}

/// Refuses a part of a pipeline where only the whole of it can be read.
pub(crate) fn undivided(share: Share) -> Result<(), Failure> {
    if share == Share::WHOLE {
        return Ok(());
    }
    let what = format!("this source cannot be divided into {} shares", share.of);
    Err(Failure::misconfigured("E-UNDIVIDED", what).with_fix(
        "write coordination = \"leader\" in the pipeline; the outbox of PostgreSQL and of MySQL can be \
         divided",
    ))
}

fn commit_failed(error: sqlx::Error) -> SendError {
    let failure = Failure::unavailable("E-COMMIT", "the commit was not confirmed")
        .with_source(error)
        .with_fix("look for it with `semel events list`; with --key it is safe to send it again");
    SendError::Commit(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_urls_are_not_shown() {
        let cases = [
            ("sqlite://shop.db", "sqlite://shop.db"),
            ("postgres://me:p@ss@db:5432/shop?password=x", "postgres://db:5432/shop"),
            ("postgres://me:p/ss@db/shop#x", "postgres://db/shop"),
            ("postgres://me:hunt?er2@db/shop", "postgres://…"),
            ("postgres://me:hunt#er2@db/shop", "postgres://…"),
            ("postgres://me@db/shop?password=hunt@er2", "postgres://…"),
            ("hunter2", "(no URL)"),
        ];
        for (url, expected) in cases {
            assert_eq!(shown(url), expected);
        }
    }
}
