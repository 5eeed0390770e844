//! A member of a consumer group: what it says to the server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::{Cmd, FromRedisValue, RedisError, Value, cmd, from_redis_value};
use semel_core::wire::{Binding, Epitaph, Format, decode};
use semel_core::{Event, Failure, Message, Topic};

use super::config::RedisConfig;
use super::entry::BODY;
use super::error::{failure, strange_answer};
use super::keys::{PATIENCE, millis};
use super::link::{Dialler, Link};
use super::script::{MOST_WORDS, Script};

/// One member of a group, and the streams that the group reads.
pub(super) struct Group {
    pub(super) config: Arc<RedisConfig>,
    pub(super) dialler: Dialler,
    scripts: Scripts,
    pub(super) name: String,
    pub(super) member: String,
    pub(super) streams: Vec<Stream>,
    pub(super) claim_after: Duration,
    pub(super) one_at_a_time: bool,
}

/// A stream, and where its dead letters go.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) topic: Topic,
    pub(super) key: String,
    pub(super) dead: String,
}

struct Scripts {
    read: Script,
    inherit: Script,
    bury: Script,
    leave: Script,
}

/// An entry as the server has it; one that was trimmed away has no fields.
pub(super) type Entry = (String, Option<Fields>);
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What came of asking for new entries.
pub(super) enum Read {
    Entries {
        entries: Vec<Entry>,
        more: bool,
    },
    /// Another member has entries in hand.
    Busy,
}

/// Members that were not seen for so long, and have nothing in hand, are removed.
const GONE: Duration = Duration::from_secs(24 * 60 * 60);

impl Group {
    pub(super) async fn open(
        config: RedisConfig,
        (name, member): (String, String),
        streams: Vec<Stream>,
        (claim_after, one_at_a_time): (Duration, bool),
    ) -> Result<Self, Failure> {
        crate::crypto::choose_provider();
        let config = Arc::new(config);
        let dialler = Dialler::new(Arc::clone(&config));
        let load = async |link: &Link| {
            Ok::<_, RedisError>(Scripts {
                read: Script::load(link, include_str!("scripts/read.lua")).await?,
                inherit: Script::load(link, include_str!("scripts/inherit.lua")).await?,
                bury: Script::load(link, include_str!("scripts/bury.lua")).await?,
                leave: Script::load(link, include_str!("scripts/leave.lua")).await?,
            })
        };
        let load = async |link: &Link| {
            load(link).await.map_err(|error| failure("prepare to subscribe", error))
        };
        let scripts = dialler.in_time(config.timeout, load).await?;
        let group =
            Self { config, dialler, scripts, name, member, streams, claim_after, one_at_a_time };
        group.make().await?;
        group.leave().await?;
        Ok(group)
    }

    /// Makes the group on every stream, from its beginning, where there is none.
    pub(super) async fn make(&self) -> Result<(), Failure> {
        for Stream { key, .. } in &self.streams {
            let mut create = cmd("XGROUP");
            create.arg("CREATE").arg(key).arg(&self.name).arg("0").arg("MKSTREAM");
            let made = self.on_link("make the group", async |link: &Link| link.ask(&create).await);
            match made.await {
                Err(failure) if failure.to_string().contains("BUSYGROUP") => {}
                made => drop(made?),
            }
        }
        Ok(())
    }

    /// Entries that the member has never had in hand, at most `count` unless the answer to an
    /// earlier call was lost.
    pub(super) async fn read(
        &self,
        stream: &Stream,
        held: usize,
        count: usize,
    ) -> Result<Read, Failure> {
        const DOING: &str = "read new entries";
        let (held, count) = (held.to_string(), count.to_string());
        let one_at_a_time: &[u8] = if self.one_at_a_time { b"1" } else { b"0" };
        let (name, member) = (self.name.as_bytes(), self.member.as_bytes());
        let arguments = [name, member, held.as_bytes(), count.as_bytes(), one_at_a_time];
        let answer = self
            .on_link(DOING, async |link: &Link| {
                self.scripts.read.run(link, &[&stream.key], &arguments).await
            })
            .await?;
        match answer {
            Value::BulkString(_) | Value::SimpleString(_) => Ok(Read::Busy),
            answer => {
                let (more, entries) = value(DOING, answer)?;
                Ok(Read::Entries { entries, more })
            }
        }
    }

    /// Takes over what others have abandoned, oldest first and at most `count`; nothing as long as
    /// another member cares for any of its entries.
    pub(super) async fn inherit(
        &self,
        stream: &Stream,
        held: usize,
        count: usize,
    ) -> Result<Vec<Entry>, Failure> {
        const DOING: &str = "take over abandoned entries";
        let (held, count, idle) = (held.to_string(), count.to_string(), millis(self.claim_after));
        let (name, member) = (self.name.as_bytes(), self.member.as_bytes());
        let arguments = [name, member, held.as_bytes(), count.as_bytes(), idle.as_bytes()];
        let inherit =
            async |link: &Link| self.scripts.inherit.run(link, &[&stream.key], &arguments).await;
        entries(DOING, self.on_link(DOING, inherit).await?)
    }

    /// Takes over what nobody has cared for, from `cursor`, whatever others have in hand; says where
    /// to go on.
    pub(super) async fn claim(
        &self,
        stream: &Stream,
        cursor: &str,
        count: usize,
    ) -> Result<(String, Vec<Entry>), Failure> {
        const DOING: &str = "claim abandoned entries";
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(&stream.key).arg(&self.name).arg(&self.member);
        claim.arg(millis(self.claim_after)).arg(cursor).arg("COUNT").arg(count);
        let answer = self.ask(DOING, &claim).await?;
        let Value::Array(mut parts) = answer else { return Err(strange_answer(DOING)) };
        parts.truncate(2);
        let claimed = parts.pop().ok_or_else(|| strange_answer(DOING))?;
        let cursor = parts.pop().ok_or_else(|| strange_answer(DOING))?;
        Ok((value(DOING, cursor)?, entries(DOING, claimed)?))
    }

    pub(super) async fn acknowledge(&self, stream: &Stream, ids: &[String]) -> Result<(), Failure> {
        let mut acknowledge = cmd("XACK");
        acknowledge.arg(&stream.key).arg(&self.name).arg(ids);
        self.ask("acknowledge", &acknowledge).await.map(drop)
    }

    /// Writes a dead letter and acknowledges the entry, both or neither, and once. An entry with more
    /// fields than a script can write may become two letters when it is interrupted.
    pub(super) async fn bury(
        &self,
        stream: &Stream,
        id: &str,
        (failure, attempts): (&Failure, u32),
        fields: &Fields,
    ) -> Result<(), Failure> {
        let origin = format!("{}@{id}", stream.topic);
        let epitaph = Epitaph { failure, attempts, consumer: &self.name, origin: &origin };
        let mut said: Vec<Vec<u8>> = Vec::new();
        epitaph.headers(Binding::Redis, &mut |name, value| {
            said.extend([name.into(), value.into()]);
        });
        let (most, count) = (MOST_WORDS.to_string(), said.len().to_string());
        let (name, id) = (self.name.as_bytes(), id.as_bytes());
        let mut words = vec![name, id, most.as_bytes(), count.as_bytes()];
        words.extend(said.iter().map(Vec::as_slice));
        words.extend(fields.iter().flat_map(|(name, value)| [&**name, &**value]));
        let names = [&*stream.key, &*stream.dead];
        let bury = async |link: &Link| match self.scripts.bury.run(link, &names, &words).await? {
            answer @ Value::Array(_) => {
                let letter: Vec<Vec<u8>> = from_redis_value(answer)?;
                link.ask(cmd("XADD").arg(&stream.dead).arg("*").arg(letter)).await?;
                link.ask(cmd("XACK").arg(&stream.key).arg(&self.name).arg(id)).await
            }
            answer => Ok(answer),
        };
        self.on_link("write a dead letter", bury).await.map(drop)
    }

    /// Says that the member still has these in hand, or with `idle` that it has let them go.
    pub(super) async fn keep(
        &self,
        stream: &Stream,
        ids: &[String],
        idle: Duration,
    ) -> Result<(), Failure> {
        const AT_ONCE: usize = 1_000;
        for some in ids.chunks(AT_ONCE) {
            let mut claim = cmd("XCLAIM");
            claim.arg(&stream.key).arg(&self.name).arg(&self.member).arg(0).arg(some);
            claim.arg("IDLE").arg(idle.as_millis().to_string()).arg("JUSTID");
            self.ask("keep entries", &claim).await?;
        }
        Ok(())
    }

    /// Removes the member, if it has nothing in hand, and others that are long gone.
    pub(super) async fn leave(&self) -> Result<(), Failure> {
        let gone = millis(GONE);
        let arguments = [self.name.as_bytes(), self.member.as_bytes(), gone.as_bytes()];
        for Stream { key, .. } in &self.streams {
            let leave = async |link: &Link| self.scripts.leave.run(link, &[key], &arguments).await;
            self.on_link("leave the group", leave).await?;
        }
        Ok(())
    }

    pub(super) async fn ask(&self, doing: &str, command: &Cmd) -> Result<Value, Failure> {
        self.on_link(doing, async |link: &Link| link.ask(command).await).await
    }

    async fn on_link(
        &self,
        doing: &str,
        work: impl AsyncFnOnce(&Link) -> Result<Value, RedisError>,
    ) -> Result<Value, Failure> {
        let limit = self.config.timeout.min(PATIENCE);
        let work = async |link: &Link| work(link).await.map_err(|error| failure(doing, error));
        self.dialler.in_time(limit, work).await
    }
}

fn value<T: FromRedisValue>(doing: &str, answer: Value) -> Result<T, Failure> {
    from_redis_value(answer).map_err(|_| strange_answer(doing))
}

/// Older servers have nothing in the place of an entry that was trimmed away.
fn entries(doing: &str, answer: Value) -> Result<Vec<Entry>, Failure> {
    let entries: Vec<Option<Entry>> = value(doing, answer)?;
    Ok(entries.into_iter().flatten().collect())
}

/// The event of an entry.
///
/// # Errors
/// `Refused` when it is none.
pub(super) fn event_of(fields: &Fields) -> Result<Event, Failure> {
    let (body, headers) = match fields.split_last() {
        Some(((name, body), headers)) if name == BODY.as_bytes() => (body.clone(), headers),
        _ => (Vec::new(), &fields[..]),
    };
    let text = |bytes| {
        std::str::from_utf8(bytes).map_err(|_| {
            Failure::refused(
                "E-WIRE",
                "this message cannot be read as an event: a field is no text",
            )
            .with_fix("check what else publishes to this place")
        })
    };
    let pairs = headers.iter().map(|(name, value)| Ok((text(name)?, text(value)?)));
    let pairs = pairs.collect::<Result<Vec<_>, Failure>>()?;
    decode(Binding::Redis, None, pairs, Bytes::from(body))
}

/// The fields of a message, for when the stream does not have its entry any more.
pub(super) fn fields_of(message: &Message) -> Fields {
    let mut fields = Fields::new();
    Format::Plain.headers(&message.event, Binding::Redis, &mut |name, value| {
        fields.push((name.into(), value.into()));
    });
    fields.push((BODY.into(), Format::Plain.body(&message.event).to_vec()));
    fields
}
