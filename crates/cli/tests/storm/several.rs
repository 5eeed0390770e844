//! Two and three relays of one pipeline, of which one is killed, one is frozen, and whose database is
//! killed and restarted, in turn: whoever divides the work, and however.

use std::time::{Duration, Instant};

use semel_testkit::services::Service;
use tokio::time::sleep;

use crate::relays::Relays;
use crate::{LEADER, PROMISED, begin, end, sorted, storm};

/// Relays which share a pipeline.
struct Several {
    what: &'static str,
    pipeline: &'static str,
    relays: usize,
    shares: usize,
}

const LED: Several = Several { what: "leader", pipeline: LEADER, relays: 2, shares: 1 };

/// What was published is deleted at once: nobody may delete what it did not publish.
const DIVIDED: Several = Several {
    what: "shares",
    pipeline: "coordination = \"partitioned\"\nshares = 6\n[retention]\ndelete = \"on_publish\"",
    relays: 3,
    shares: 6,
};

const COMPETING: Several = Several {
    what: "competing",
    pipeline: "coordination = \"competing\"\nshares = 4",
    relays: 3,
    shares: 4,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_frozen_or_killed_is_replaced_and_fenced() {
    lose_in_turn(Service::Postgres, LED).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_frozen_or_killed_is_replaced_and_fenced_on_mysql() {
    lose_in_turn(Service::Mysql, LED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_relays_with_shares_are_lost_in_turn() {
    lose_in_turn(Service::Postgres, DIVIDED).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn three_relays_with_shares_are_lost_in_turn_on_mysql() {
    lose_in_turn(Service::Mysql, DIVIDED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_competing_relays_are_lost_in_turn() {
    lose_in_turn(Service::Postgres, COMPETING).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn three_competing_relays_are_lost_in_turn_on_mysql() {
    lose_in_turn(Service::Mysql, COMPETING).await;
}

/// Whoever is away loses its shares to whoever is free, and gets nothing published under them.
async fn lose_in_turn(service: Service, several: Several) {
    const KINDS: usize = 4;
    let Several { what, pipeline, relays, shares } = several;
    let what = format!("{what}, {}", service.as_str());
    let Some((server, mut relays, writers)) = begin(service, pipeline, relays).await else {
        return;
    };
    let lanes = relays.lanes(shares).await;
    let (began, mut took, mut losses) = (Instant::now(), Vec::new(), 0);
    let takeovers = if shares == 1 { 4 } else { 2 };
    while began.elapsed() < storm() || losses < KINDS || took.len() < takeovers {
        sleep(Duration::from_secs(1)).await;
        match losses % KINDS {
            0 => {
                let loss = relays.lose(losses / KINDS % shares, Relays::kill).await;
                sleep(Duration::from_millis(500)).await;
                relays.start(loss.victim);
                took.push(relays.taken_over(loss, &lanes).await);
            }
            1 => {
                let freeze = |relays: &mut Relays, victim| relays.freeze(victim);
                let loss = relays.lose(losses / KINDS % shares, freeze).await;
                let victim = loss.victim;
                took.push(relays.taken_over(loss, &lanes).await);
                relays.thaw(victim);
            }
            2 => {
                server.kill();
                server.restart();
            }
            _ => server.restart(),
        }
        losses += 1;
    }
    relays.next_publishing().await;
    sleep(Duration::from_secs(1)).await;
    assert!(relays.all_run(), "neither an outage nor a lost share ends a relay");
    relays.stop_all();
    // Who loses its database for long loses its shares as well.
    let restarts = losses / 2;
    end(&what, relays, writers, (losses + restarts) * shares).await;
    let took = sorted(&what, took);
    if shares == 1 {
        // A machine with nothing to spare may be late, and with several shares it is: the last one counts.
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        assert!(median <= PROMISED, "{what}: {took:?}");
        assert!(longest <= PROMISED + Duration::from_secs(2), "{what}: {took:?}");
    }
}
