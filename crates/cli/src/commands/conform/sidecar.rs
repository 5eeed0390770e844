//! I: protocols, and what goes on to the handler.

use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    99 both_protocols ["default"] "a key of HTTP/1.1 is the same in HTTP/2";
    100 handed_on ["default"] "the handler sees key, attempt and fence, and none that a client made up";
    104 early_data ["default"] "early data needs a key";
}

async fn both_protocols(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    probe.send(&call.clone().http2()).await?.repeats(&first)?;
    probe.ran(1).await?;
    let other = probe.anew().post("default");
    let first = probe.send(&other.clone().http2()).await?;
    first.is_first(201)?;
    probe.send(&other).await?.repeats(&first)
}

async fn handed_on(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").header("idempotency-attempt", "77");
    let call = call.header("idempotency-fence", "18446744073709551615");
    probe.send(&call).await?.is_first(201)?;
    let runs = probe.runs().await?;
    let [run] = &runs[..] else {
        return Err(Wrong::Failed(format!("{} executions where 1 is right", runs.len())));
    };
    let is_right = run.attempt == Some(1)
        && run.fence.is_some_and(|fence| fence != u64::MAX)
        && run.key.as_deref() == Some(&probe.key);
    ensure(is_right, || {
        let (attempt, fence, key) = (run.attempt, run.fence, &run.key);
        format!("the handler saw attempt {attempt:?}, fence {fence:?}, key {key:?}")
    })
}

async fn early_data(probe: Probe) -> Result<(), Wrong> {
    let early = probe.post("default").header("early-data", "1");
    probe.send(&early.clone().without("idempotency-key")).await?.problem(425)?;
    probe.ran(0).await?;
    let first = probe.send(&early).await?;
    first.is_first(201)?;
    probe.send(&early).await?.repeats(&first)?;
    probe.ran(1).await
}
