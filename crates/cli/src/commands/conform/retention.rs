//! F: how long answers are kept.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    79 until_the_end ["brief"] "an answer is replayed until shortly before its end";
    80 afterwards ["brief"] "after its end the key runs again, unmarked";
    83 published ["brief"] "how long that is can be asked by OPTIONS";
}

async fn until_the_end(probe: Probe) -> Result<(), Wrong> {
    let kept = Duration::from_secs(6);
    for _ in 0..4 {
        let (probe, sent) = (Probe::new(&probe.ground), Instant::now());
        let call = probe.post("brief");
        let first = probe.send(&call).await?;
        first.is_first(201)?;
        sleep(Duration::from_secs(4)).await;
        let second = probe.send(&call).await?;
        if sent.elapsed() < kept {
            second.repeats(&first)?;
            return probe.ran(1).await;
        }
    }
    Err(Wrong::Failed(format!("its answers come after {kept:?}, four times")))
}

async fn afterwards(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("brief");
    probe.send(&call).await?.is_first(201)?;
    sleep(Duration::from_millis(7500)).await;
    let second = probe.send(&call).await?;
    second.is_first(201)?;
    probe.send(&call).await?.repeats(&second)?;
    probe.ran(2).await
}

async fn published(probe: Probe) -> Result<(), Wrong> {
    let reply = probe.send(&probe.post("brief").method("OPTIONS")).await?;
    let Some(told) = reply.header("idempotency-retention") else {
        return Err(Wrong::Skipped("the answer has no Idempotency-Retention".into()));
    };
    let seconds = told.parse::<u64>();
    ensure(seconds == Ok(6), || format!("it tells {told:?} s where 6 are right"))
}
