//! Waiting for new entries, over a connection of its own: nothing else can be asked meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{RedisError, Value, cmd, from_redis_value};
use semel_core::Failure;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::error::failure;
use super::group::Group;
use super::keys::PATIENCE;
use super::link::{Dialler, Link};

/// Rings when there is something that the group has never been given.
pub(super) struct Watch {
    wanted: Arc<Notify>,
    rung: Arc<Notify>,
}

impl Watch {
    pub(super) fn start(group: Arc<Group>, tasks: &mut JoinSet<()>) -> Self {
        let watch = Self { wanted: Arc::default(), rung: Arc::default() };
        tasks.spawn(run(group, Arc::clone(&watch.wanted), Arc::clone(&watch.rung)));
        watch
    }

    /// Resolves when it rings.
    pub(super) fn next(&self) -> BoxFuture<'static, ()> {
        self.wanted.notify_one();
        let rung = Arc::clone(&self.rung);
        Box::pin(async move { rung.notified().await })
    }
}

/// A wait of the server. Shorter than the patience with an answer.
const WAIT: Duration = Duration::from_secs(2);

/// After this, whoever asks the server is told what is wrong.
const PAUSE_AFTER_TROUBLE: Duration = Duration::from_millis(500);

async fn run(group: Arc<Group>, wanted: Arc<Notify>, rung: Arc<Notify>) {
    let dialler = Dialler::new(Arc::clone(&group.config));
    loop {
        wanted.notified().await;
        loop {
            match dialler.in_time(PATIENCE, async |link: &Link| is_new(link, &group).await).await {
                Ok(false) => {}
                Ok(true) => break,
                Err(_) => {
                    sleep(PAUSE_AFTER_TROUBLE).await;
                    break;
                }
            }
        }
        rung.notify_one();
    }
}

/// Waits until a stream has an entry behind the last one that was given to the group.
async fn is_new(link: &Link, group: &Group) -> Result<bool, Failure> {
    let trouble = |error| failure("wait for new entries", error);
    let mut read = cmd("XREAD");
    read.arg("COUNT").arg(1).arg("BLOCK").arg(WAIT.as_millis().to_string()).arg("STREAMS");
    for stream in &group.streams {
        read.arg(&stream.key);
    }
    for stream in &group.streams {
        let told = link.ask(cmd("XINFO").arg("GROUPS").arg(&stream.key)).await.map_err(trouble)?;
        read.arg(last_given(told, &group.name).map_err(trouble)?);
    }
    let answer = link.ask(&read).await.map_err(trouble)?;
    Ok(answer != Value::Nil)
}

/// The id of the last entry that was given to the group; everything is new to one that is not there.
fn last_given(told: Value, group: &str) -> Result<String, RedisError> {
    let groups: Vec<std::collections::HashMap<String, Value>> = from_redis_value(told)?;
    for mut told in groups {
        let name: Option<String> = told.remove("name").map(from_redis_value).transpose()?;
        if name.as_deref() == Some(group)
            && let Some(id) = told.remove("last-delivered-id")
        {
            return Ok(from_redis_value(id)?);
        }
    }
    Ok("0".to_owned())
}
