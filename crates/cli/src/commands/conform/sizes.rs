//! H: what is large, streamed or cut short.

use std::time::Duration;

use super::call::{Call, large};
use super::probe::{Probe, ensure};
use super::reply::Reply;
use super::{Wrong, behaviours};

behaviours! {
    94 large_request ["small"] "a request over the limit is refused, with or without a length";
    95 large_answer ["small"] "an answer over the limit reaches only the first client";
    96 streamed ["default"] "a stream reaches its client before it ends, and no other";
    97 short_answer ["default"] "an answer that ends early is never replayed as whole";
    98 trailers ["default"] "trailers are replayed";
}

async fn large_request(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("small").body(large(4000));
    for call in [call.clone(), call.in_pieces()] {
        probe.send(&call).await?.problem(413)?;
    }
    probe.ran(0).await?;
    probe.send(&probe.post("small")).await?.is_first(201)
}

/// That the first has its answer, and a retry is told that it ran and is not run again.
async fn not_retained(probe: &Probe, call: &Call) -> Result<Reply, Wrong> {
    let first = probe.send(call).await?;
    ensure(!first.is_replayed(), || format!("{first} is marked as a replay"))?;
    let reply = probe.settled(call).await?;
    let problem = reply.problem(409)?;
    let status = &problem["original_status"];
    ensure(status == first.status, || format!("the original status is {status} in {reply}"))?;
    probe.ran(1).await?;
    Ok(first)
}

async fn large_answer(probe: Probe) -> Result<(), Wrong> {
    let first = not_retained(&probe, &probe.post("small").act("bytes=4000")).await?;
    ensure(first.body.len() == 4000, || format!("{} bytes reached the client", first.body.len()))
}

async fn streamed(probe: Probe) -> Result<(), Wrong> {
    let first = not_retained(&probe, &probe.post("default").act("pieces pause=4000")).await?;
    let early = first.streamed;
    ensure(early >= Duration::from_secs(1), || format!("its first piece came {early:?} early"))?;
    ensure(first.is_whole, || "the stream broke off".into())
}

async fn short_answer(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").act("short");
    // Whether the client gets a broken answer or none does not matter.
    let first = probe.send(&call).await;
    ensure(!first.is_ok_and(|it| it.is_whole && it.status < 300), || "it came as whole".into())?;
    let reply = probe.settled(&call).await?;
    ensure(!reply.is_replayed(), || format!("{reply} was replayed"))?;
    reply.problem(409)?;
    probe.ran(1).await
}

async fn trailers(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").act("pieces trailer").http2();
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    let second = probe.send(&call).await?;
    second.repeats(&first)?;
    for reply in [first, second] {
        let end = reply.trailers.as_ref().and_then(|it| it.get("x-conform-end"));
        ensure(end.is_some_and(|end| end == "yes"), || format!("trailers {:?}", reply.trailers))?;
    }
    Ok(())
}
