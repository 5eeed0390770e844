//! Who has which share, and how long what it lost is with nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;

use super::{PATIENCE, Relays};

/// What a relay had when it was lost.
pub(crate) struct Loss {
    pub(crate) victim: usize,
    /// One at least.
    shares: BTreeSet<usize>,
    at: Instant,
    /// How many bytes of events there were.
    written: u64,
}

impl Relays {
    /// The relay that holds a share.
    pub(crate) async fn owner_of(&self, share: usize) -> usize {
        self.owner_and_all_it_has(share).await.0
    }

    /// Both as they were at one time: a share may change hands between two questions.
    async fn owner_and_all_it_has(&self, share: usize) -> (usize, BTreeSet<usize>) {
        let began = Instant::now();
        loop {
            let mut owners = self.owners().await;
            let owner = owners.get(&share).and_then(|owner| self.number_of(owner));
            if let Some(number) = owner {
                owners.retain(|_, owner| self.number_of(owner) == Some(number));
                return (number, owners.into_keys().collect());
            }
            assert!(began.elapsed() < PATIENCE, "nobody has share {share}: {}", self.logs());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn number_of(&self, owner: &str) -> Option<usize> {
        let is_owner = |child: &Child| owner.ends_with(&format!(" {}", child.id()));
        self.running.iter().position(|child| child.as_ref().is_some_and(is_owner))
    }

    /// Does this to the relay that holds a share, which is not there any more afterwards.
    pub(crate) async fn lose(&mut self, share: usize, how: impl FnOnce(&mut Self, usize)) -> Loss {
        let (victim, shares) = self.owner_and_all_it_has(share).await;
        how(self, victim);
        Loss { victim, shares, at: Instant::now(), written: self.written() }
    }

    /// How long it takes until something of each share is published again that was lost.
    pub(crate) async fn taken_over(&self, loss: Loss, lanes: &BTreeMap<String, usize>) -> Duration {
        let Loss { mut shares, at, written, .. } = loss;
        let mut events = BufReader::new(File::open(self.events()).unwrap());
        events.seek(SeekFrom::Start(written)).unwrap();
        let mut line = String::new();
        loop {
            while events.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
                // The end of a line that had been begun is no event.
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                let lane = event["aggregate_id"].as_str().unwrap_or_default();
                if let Some(share) = lanes.get(lane) {
                    shares.remove(share);
                }
                line.clear();
            }
            if shares.is_empty() {
                return at.elapsed();
            }
            assert!(at.elapsed() < PATIENCE, "nobody took over {shares:?}: {}", self.logs());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The share that each lane belongs to.
    pub(crate) async fn lanes(&self, shares: usize) -> BTreeMap<String, usize> {
        let lanes = if self.url.starts_with("postgres") {
            format!("select id::text, semel.share_of('lane', id::text, {shares})::bigint from lane")
        } else {
            format!(
                "SELECT CAST(id AS CHAR), CAST(mod(crc32(concat('lane/', id)), {shares}) AS SIGNED)
                FROM lane"
            )
        };
        self.pairs(lanes)
            .await
            .into_iter()
            .map(|(lane, share)| (lane, share_number(share)))
            .collect()
    }

    /// Who has which share.
    async fn owners(&self) -> BTreeMap<usize, String> {
        let owners = if self.url.starts_with("postgres") {
            "select owner, share::bigint from semel.share where until > now()"
        } else if self.url.starts_with("sqlite") {
            "SELECT owner, share FROM semel_share WHERE until > unixepoch('subsec') * 1000000"
        } else {
            "SELECT owner, CAST(share AS SIGNED) FROM semel_share
            WHERE expires_at > utc_timestamp(6)"
        };
        let owners = self.pairs(owners.to_owned()).await;
        owners.into_iter().map(|(owner, share)| (share_number(share), owner)).collect()
    }
}

fn share_number(share: i64) -> usize {
    usize::try_from(share).unwrap()
}
