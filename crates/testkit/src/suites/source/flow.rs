//! How much is handed out, when to ask again, and what a dropped call leaves behind.

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Limit, Outcome, Source};
use tokio::time::timeout;

use super::SourceProbe;
use crate::probe::Ran;
use crate::workload::{Drive, delivered_numbers, event, events, ids, lanes, settlements};

/// At most `limit` is handed out, and the rest with the next calls.
pub async fn at_most_the_limit_of_events_is_handed_out<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&lanes(10)).await;
    let mut drive = Drive::open(&**probe).await;
    let mut taken = Vec::new();
    while taken.len() < 10 {
        // `batch_of` checks the limit.
        taken.extend(drive.batch_of(Limit { events: 3, ..Limit::default() }).await.deliveries);
    }
    let mut numbers = delivered_numbers(&taken);
    numbers.sort_unstable();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    Ok(())
}

/// The same in bytes, by [`Event::size`](semel_core::Event::size).
pub async fn at_most_the_limit_of_bytes_is_handed_out<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let written: Vec<_> = lanes(10)
        .into_iter()
        .map(|event| event.with_bytes("application/octet-stream", vec![b'x'; 2_000]))
        .collect();
    probe.commit_all(&written).await;
    let limit = Limit { bytes: written[0].size() * 7 / 2, ..Limit::default() };
    let mut drive = Drive::open(&**probe).await;
    let mut taken = Vec::new();
    while taken.len() < 10 {
        taken.extend(drive.batch_of(limit).await.deliveries);
    }
    let mut expected: Vec<_> = written.iter().map(|event| event.id).collect();
    expected.sort_unstable();
    assert_eq!(ids(&taken), expected);
    Ok(())
}

/// At least one delivery is handed out if any is ready, even if it alone exceeds the limit.
pub async fn an_event_larger_than_the_limit_is_handed_out_alone<P: SourceProbe>(
    probe: &Arc<P>,
) -> Ran {
    let large = event("large", 1).with_bytes("application/octet-stream", vec![7; 50_000]);
    probe.commit_all(&[large, event("small", 2)]).await;
    let limit = Limit { bytes: 1, ..Limit::default() };
    let mut drive = Drive::open(&**probe).await;
    for _ in 0..2 {
        assert_eq!(drive.batch_of(limit).await.deliveries.len(), 1);
    }
    drive.expect_nothing().await;
    Ok(())
}

/// `more` is true while more is ready, and false once an answer was empty.
pub async fn more_says_whether_asking_again_is_worth_it<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&lanes(7)).await;
    let mut drive = Drive::open(&**probe).await;
    let limit = Limit { events: 2, ..Limit::default() };
    let mut taken = 0;
    while taken < 7 {
        let batch = drive.batch_of(limit).await;
        taken += batch.deliveries.len();
        // What is still on its way to a buffer need not be known yet.
        let known = P::QUIET.is_zero();
        assert!(batch.more || taken == 7 || !known, "{taken} of 7 taken, and no more is ready");
    }
    drive.expect_nothing().await;
    Ok(())
}

/// A commit ends the wait.
pub async fn a_commit_wakes_the_source<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.wakes()?;
    let mut drive = Drive::open(&**probe).await;
    for number in 0..3 {
        drive.expect_nothing().await;
        let wakeup = tokio::spawn(drive.source.wakeup());
        probe.commit_all(&[event("a", number)]).await;
        timeout(Duration::from_secs(10), wakeup).await.expect("woken").expect("no panic");
        assert_eq!(delivered_numbers(&drive.drain(1).await), [number]);
    }
    Ok(())
}

/// A `next_batch` that is dropped half-way may or may not have taken effect; nothing is lost.
pub async fn a_dropped_call_leaves_the_source_usable<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, mut got) = (Drive::open(&**probe).await, Vec::new());
    for (round, micros) in (0..).zip([0, 50, 200, 1_000, 5_000]) {
        probe.commit_all(&[event(&format!("lane-{round}"), round)]).await;
        let wait = Duration::from_micros(micros);
        // One that came to its end was not dropped.
        if let Ok(batch) = timeout(wait, drive.source.next_batch(Limit::default())).await {
            got.extend(batch.expect("next_batch").deliveries);
        }
    }
    probe.commit_all(&[event("last", 5)]).await;
    while !delivered_numbers(&got).contains(&5) {
        got.extend(drive.batch().await);
    }
    drive.deliver(&got).await;

    let mut drive = drive.reopen().await;
    let before = delivered_numbers(&got);
    let mut numbers: Vec<u64> = (0..5).filter(|number| !before.contains(number)).collect();
    let mut rest = delivered_numbers(&drive.drain(numbers.len()).await);
    rest.sort_unstable();
    numbers.sort_unstable();
    assert_eq!(rest, numbers);
    Ok(())
}

/// A `settle` that is dropped half-way can be asked again, like one that failed.
pub async fn a_dropped_settle_can_be_repeated<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    for (round, micros) in (0..).zip([0, 50, 200, 1_000, 5_000]) {
        probe.commit_all(&events(&format!("lane-{round}"), [round])).await;
        let taken = drive.take(1).await;
        let delivered = [(taken[0].receipt, Outcome::Delivered)];
        let wait = Duration::from_micros(micros);
        drop(timeout(wait, drive.source.settle(&settlements(delivered.clone()))).await);
        drive.settle(delivered).await;
    }
    drive.reopen().await.expect_nothing().await;
    Ok(())
}
