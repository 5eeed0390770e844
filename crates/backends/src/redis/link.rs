//! The connection: made when it is needed, made anew when it broke.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, Value, cmd, from_redis_value,
};
use semel_core::{Failure, Fault};
use tokio::time::{Instant, timeout_at};

use super::config::RedisConfig;
use super::error::{failure, said, strange_answer, timed_out};
use super::rounds::Transaction;

/// What the server takes when it does not say so.
const USUAL_FIELD_BYTES: usize = 512 << 20;

/// An open connection, used by all calls at once.
pub(super) struct Link {
    connection: MultiplexedConnection,
    pub(super) max_field_bytes: usize,
}

impl Link {
    async fn open(config: &RedisConfig) -> Result<Self, Failure> {
        let at = format!("connect to {}", config.server.addr());
        // Every wait is bounded by the call that waits.
        let unhurried =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = client(config)?
            .get_multiplexed_async_connection_with_config(&unhurried)
            .await
            .map_err(|error| failure(&at, error))?;
        let mut link = Self { connection, max_field_bytes: USUAL_FIELD_BYTES };
        link.log_in(config).await.map_err(|error| failure(&at, error))?;
        link.max_field_bytes = match config.max_field_bytes {
            Some(bytes) => bytes,
            None => link.ask_limit().await.map_err(|error| failure(&at, error))?,
        };
        Ok(link)
    }

    async fn log_in(&self, config: &RedisConfig) -> Result<(), RedisError> {
        if let Some(password) = &config.password {
            let user = config.user.as_deref();
            self.ask(cmd("AUTH").arg(user).arg(password.reveal())).await?;
        }
        if config.database != 0 {
            self.ask(cmd("SELECT").arg(config.database)).await?;
        }
        self.ask(&cmd("PING")).await.map(drop)
    }

    /// Many servers do not let everybody see their settings.
    async fn ask_limit(&self) -> Result<usize, RedisError> {
        match self.ask(cmd("CONFIG").arg("GET").arg("proto-max-bulk-len")).await {
            Ok(answer) => {
                let pair: Vec<String> = from_redis_value(answer).unwrap_or_default();
                Ok(pair.get(1).and_then(|bytes| bytes.parse().ok()).unwrap_or(USUAL_FIELD_BYTES))
            }
            Err(error) if error.is_io_error() => Err(error),
            Err(_) => Ok(USUAL_FIELD_BYTES),
        }
    }

    /// Sends one command.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.connection.clone().req_packed_command(command).await?.extract_error()
    }

    /// Says so when the server may lose what it confirmed. Without the right to ask, it says
    /// nothing.
    pub(super) async fn warn_of(
        &self,
        risks: impl Fn(&Settings) -> Vec<&'static str>,
    ) -> Result<(), RedisError> {
        let info = match self.ask(&cmd("INFO")).await {
            Ok(answer) => from_redis_value::<String>(answer).unwrap_or_default(),
            Err(error) if error.is_io_error() => return Err(error),
            Err(_) => return Ok(()),
        };
        let risks = risks(&Settings::read(&info));
        if !risks.is_empty() {
            tracing::warn!("Redis may lose what it confirmed: {}", risks.join("; "));
        }
        Ok(())
    }

    /// Adds all entries of a transaction, or none.
    pub(super) async fn run(&self, transaction: &mut Transaction<'_>) -> Result<(), Failure> {
        let doing = format!("add to the stream of {:?}", transaction.topic);
        let mut commands = Pipeline::with_capacity(transaction.commands.len() + 2);
        // One command is a transaction by itself.
        let several = transaction.commands.len() > 1;
        if several {
            commands.cmd("MULTI");
        }
        for command in transaction.commands.drain(..) {
            commands.add_command(command);
        }
        if several {
            commands.cmd("EXEC");
        }
        let mut connection = self.connection.clone();
        let answers = connection.req_packed_commands(&commands, 0, commands.len()).await;
        judge(&doing, &answers.map_err(|error| failure(&doing, error))?, several)
    }
}

/// What decides whether a server keeps what it confirmed.
pub(super) struct Settings {
    /// `maxmemory-policy`, or nothing.
    pub(super) eviction: String,
    appends: bool,
}

impl Settings {
    /// Reads the answer to `INFO`.
    pub(super) fn read(info: &str) -> Self {
        let value = |name: &str| {
            info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
        };
        Self {
            eviction: value("maxmemory_policy").unwrap_or_default().to_owned(),
            appends: value("aof_enabled") != Some("0"),
        }
    }

    pub(super) fn forgetful(&self) -> Option<&'static str> {
        (!self.appends).then_some("a crash loses all since the last snapshot (set appendonly yes)")
    }
}

/// The first error is the cause: what is turned down while it is queued makes `EXEC` fail too.
fn judge(doing: &str, answers: &[Value], several: bool) -> Result<(), Failure> {
    let carried_out = match answers.last() {
        Some(Value::Array(each)) if several => each.as_slice(),
        _ => answers,
    };
    let error = answers.iter().chain(carried_out).find_map(|answer| match answer {
        Value::ServerError(error) => Some(error),
        _ => None,
    });
    match error {
        Some(error) => Err(said(doing, error)),
        None if carried_out.iter().all(|id| matches!(id, Value::BulkString(_))) => Ok(()),
        None => Err(strange_answer(doing)),
    }
}

/// Makes links, one at a time.
pub(super) struct Dialler {
    config: Arc<RedisConfig>,
    link: Mutex<Option<Arc<Link>>>,
    turn: tokio::sync::Mutex<()>,
}

impl Dialler {
    pub(super) fn new(config: Arc<RedisConfig>) -> Self {
        Self { config, link: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// The open link, or a new one.
    async fn link(&self) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.current().clone() {
            return Ok(link);
        }
        let _turn = self.turn.lock().await;
        if let Some(link) = self.current().clone() {
            return Ok(link);
        }
        let link = Arc::new(Link::open(&self.config).await?);
        *self.current() = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Does something over the link. After an outage it is not used again: it was lost or hangs, or
    /// after a failover the address leads to another server.
    pub(super) async fn in_time<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Link) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + limit;
        let link = timeout_at(deadline, self.link()).await.map_err(|_| timed_out(limit))??;
        let done = timeout_at(deadline, work(&link)).await;
        let done = done.unwrap_or_else(|_| Err(timed_out(limit)));
        if done.as_ref().is_err_and(|failure| failure.fault() == Fault::Unavailable) {
            self.abandon(&link);
        }
        done
    }

    /// Never uses this link again.
    fn abandon(&self, link: &Arc<Link>) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            *current = None;
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client(config: &RedisConfig) -> Result<Client, Failure> {
    let server = config.server.clone().set_tcp_settings(TcpSettings::default().set_nodelay(true));
    #[cfg(feature = "tls")]
    if let Some(path) = &config.ca_file {
        let file = format!("ca_file {}", path.display());
        let pem = std::fs::read(path).map_err(|error| super::error::unreadable(&file, error))?;
        let trusted = redis::TlsCertificates { client_tls: None, root_cert: Some(pem) };
        return Client::build_with_tls(server, trusted)
            .map_err(|error| super::error::unreadable(&file, error));
    }
    #[cfg(not(feature = "tls"))]
    if config.ca_file.is_some() {
        let what = "Redis: ca_file needs TLS, which is not built in";
        return Err(
            Failure::misconfigured("E-REDIS-TLS", what).with_fix("build with the feature tls")
        );
    }
    Client::open(server).map_err(|error| failure("prepare to connect", error))
}
