//! E: what breaks off, and what is kept.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::call::Call;
use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    54 hung_up ["default"] "a client that hangs up does not stop the handler";
    55 stream_reset ["default"] "nor does the reset of an HTTP/2 stream";
    57 cut_upload ["default"] "an upload that is cut off runs nothing and leaves no record";
    59 second_attempt ["lease"] "after a crash the retry runs, and the handler sees attempt 2";
    60 uncertain ["careful"] "or nothing runs, and the outcome is said to be unknown";
    63 fences ["lease"] "the fence grows with every attempt";
    64 panic ["default"] "a handler that panics is 5xx for one client, and the next retry runs";
    65 server_error ["default"] "500 is not kept";
    66 stripe_error ["stripe"] "in Stripe's profile it is";
    67 kept ["default"] "400, 404, 409, 410 and 422 of the handler are kept";
    68 not_kept ["default"] "401, 403, 408, 421, 425, 429, 502, 503 and 504 are not";
    69 not_started ["default"] "after 'not started' the key may carry a corrected request";
    70 final_error ["default"] "a final 500 is kept";
    71 turned_away ["guarded"] "a request that was turned away does not use its key up";
    72 directives ["default"] "a handler's own retention is honoured, and hidden from the client";
}

/// Hangs up on it, and sends it again.
async fn hang_up(probe: &Probe, call: &Call) -> Result<(), Wrong> {
    let running = probe.start(call);
    probe.begun(1).await?;
    drop(running);
    let reply = probe.settled(call).await?;
    reply.is(201)?;
    ensure(reply.is_replayed(), || format!("{reply} is not marked as a replay"))?;
    probe.ran(1).await
}

async fn hung_up(probe: Probe) -> Result<(), Wrong> {
    hang_up(&probe, &probe.post("default").act("after=800")).await
}

async fn stream_reset(probe: Probe) -> Result<(), Wrong> {
    hang_up(&probe, &probe.post("default").act("after=800").http2()).await
}

async fn cut_upload(probe: Probe) -> Result<(), Wrong> {
    // Whether there is an answer does not matter.
    probe.send(&probe.post("default").cut_off()).await.ok();
    probe.ran(0).await?;
    let other = probe.post("default").body("{\"total\":100}");
    probe.settled(&other).await?.is_first(201)?;
    probe.ran(1).await
}

async fn second_attempt(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("lease");
    probe.send(&call.clone().act("vanish")).await.ok();
    probe.settled(&call).await?.is_first(201)?;
    let attempts: Vec<_> = probe.runs().await?.iter().map(|run| run.attempt).collect();
    ensure(attempts == [Some(1), Some(2)], || format!("the handler saw attempts {attempts:?}"))
}

async fn uncertain(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("careful");
    probe.send(&call.clone().act("vanish")).await.ok();
    for _ in 0..2 {
        let problem = probe.settled(&call).await?.problem(409)?;
        let operation = problem["operation"].as_str().unwrap_or_default();
        ensure(!operation.is_empty(), || format!("no operation to refer to in {problem}"))?;
    }
    probe.ran(1).await
}

async fn fences(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("lease");
    for _ in 0..2 {
        probe.settled(&call.clone().act("vanish")).await.ok();
    }
    probe.settled(&call).await?.is_first(201)?;
    let fences: Vec<_> = probe.runs().await?.iter().map(|run| run.fence).collect();
    let grows = fences.len() == 3 && fences.is_sorted_by(|a, b| a.is_some() && a < b);
    ensure(grows, || format!("the handler saw fences {fences:?}"))
}

async fn panic(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    let reply = probe.send(&call.clone().act("panic")).await?;
    ensure(reply.status >= 500, || format!("{reply} where 5xx is right"))?;
    probe.send(&probe.anew().post("default")).await?.is_first(201)?;
    probe.settled(&call).await?.is_first(201)?;
    probe.ran(3).await
}

async fn server_error(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    probe.send(&call.clone().act("status=500")).await?.is_first(500)?;
    probe.send(&call).await?.is_first(201)?;
    probe.ran(2).await
}

/// That an answer of this kind is replayed.
async fn is_kept(probe: &Probe, call: &Call, status: u16) -> Result<(), Wrong> {
    let first = probe.send(call).await?;
    first.is_first(status)?;
    probe.send(call).await?.repeats(&first)
}

async fn stripe_error(probe: Probe) -> Result<(), Wrong> {
    is_kept(&probe, &probe.post("stripe").act("status=500"), 500).await?;
    probe.ran(1).await
}

async fn kept(probe: Probe) -> Result<(), Wrong> {
    for status in [400, 404, 409, 410, 422] {
        let call = probe.anew().post("default").act(&format!("status={status}"));
        is_kept(&probe, &call, status).await?;
    }
    probe.ran(5).await
}

async fn not_kept(probe: Probe) -> Result<(), Wrong> {
    for status in [401, 403, 408, 421, 425, 429, 502, 503, 504] {
        let call = probe.anew().post("default").act(&format!("status={status}"));
        for _ in 0..2 {
            probe.send(&call).await?.is_first(status)?;
        }
    }
    probe.ran(18).await
}

async fn not_started(probe: Probe) -> Result<(), Wrong> {
    let reply = probe.send(&probe.post("default").act("status=400 not-started")).await?;
    reply.is_first(400)?;
    probe.hides_controls(&reply)?;
    let corrected = probe.post("default").body("{\"total\":100}");
    probe.send(&corrected).await?.is_first(201)?;
    probe.ran(2).await
}

async fn final_error(probe: Probe) -> Result<(), Wrong> {
    is_kept(&probe, &probe.post("default").act("status=500 final"), 500).await?;
    probe.ran(1).await
}

async fn turned_away(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("guarded").header("authorization", "revoked");
    let reply = probe.send(&call).await?;
    ensure(matches!(reply.status, 401 | 403), || format!("{reply} where 403 is right"))?;
    probe.ran(0).await?;
    // The key is unused, even for another request.
    probe.send(&probe.post("guarded").body("{\"total\":100}")).await?.is_first(201)?;
    probe.ran(1).await
}

async fn directives(probe: Probe) -> Result<(), Wrong> {
    let (probe, kept) = kept_for_a_while(&probe).await?;
    sleep(Duration::from_millis(4500)).await;
    probe.send(&kept).await?.is_first(201)?;
    let again = probe.anew().post("default").act("retryable");
    for _ in 0..2 {
        let reply = probe.send(&again).await?;
        reply.is_first(201)?;
        probe.hides_controls(&reply)?;
    }
    probe.ran(4).await
}

/// A call whose answer is replayed for three seconds, as the handler wants it.
async fn kept_for_a_while(probe: &Probe) -> Result<(Probe, Call), Wrong> {
    for _ in 0..4 {
        let (probe, sent) = (Probe::new(&probe.ground), Instant::now());
        let call = probe.post("default").act("keep=3");
        let (first, second) = (probe.send(&call).await?, probe.send(&call).await?);
        first.is_first(201)?;
        for reply in [&first, &second] {
            probe.hides_controls(reply)?;
        }
        if sent.elapsed() < Duration::from_secs(3) {
            second.repeats(&first)?;
            return Ok((probe, call));
        }
    }
    Err(Wrong::Failed("its answers come after three seconds, four times".into()))
}
