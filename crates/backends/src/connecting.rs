//! Why a pool of connections could not be opened.

use std::time::Duration;

use sqlx::ConnectOptions;

/// A pool tries again while a server refuses it, and says in the end only that time is over. One more
/// try says why.
pub(crate) async fn reason<O>(options: &O, error: sqlx::Error) -> sqlx::Error
where
    O: ConnectOptions<Connection: Sized>,
{
    const PATIENCE: Duration = Duration::from_secs(1);
    if !matches!(error, sqlx::Error::PoolTimedOut) {
        return error;
    }
    match tokio::time::timeout(PATIENCE, options.connect()).await {
        Ok(Err(reason)) => reason,
        _ => error,
    }
}
