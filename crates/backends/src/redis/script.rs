//! A Lua script, known to the server by the hash of its text.

use redis::{Cmd, RedisError, Value, cmd, from_redis_value};

use super::link::Link;

/// How many words a script can give to a command. Lua has room for about 8,000.
pub(super) const MOST_WORDS: usize = 7_000;

/// A script that the server has been told.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    pub(super) async fn load(link: &Link, text: &'static str) -> Result<Self, RedisError> {
        let hash = link.ask(cmd("SCRIPT").arg("LOAD").arg(text)).await?;
        Ok(Self { text, hash: from_redis_value(hash)? })
    }

    /// By its hash; by its text when the server has forgotten it.
    pub(super) async fn run(
        &self,
        link: &Link,
        names: &[&str],
        arguments: &[&[u8]],
    ) -> Result<Value, RedisError> {
        let by = |verb: &str, script: &str| -> Cmd {
            let mut command = cmd(verb);
            command.arg(script).arg(names.len()).arg(names).arg(arguments);
            command
        };
        match link.ask(&by("EVALSHA", &self.hash)).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                link.ask(&by("EVAL", self.text)).await
            }
            answer => answer,
        }
    }
}
