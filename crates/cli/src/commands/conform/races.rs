//! D: several at once.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::call::Call;
use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    44 rejected ["reject"] "a duplicate of a running request is told to come again";
    45 then_replayed ["reject"] "and gets the answer when it does";
    46 waiting ["wait"] "or it waits, and gets the answer";
    47 waiting_too_long ["wait"] "but not for ever";
    48 two_hundred ["default"] "two hundred at once are one execution";
    49 over_instances ["default"] "also over several instances";
    50 next_waiter ["wait"] "if the first is not kept, exactly one waiter goes next";
    51 waiter_leaves ["wait"] "a waiter that leaves disturbs nobody";
    52 long_run ["lease"] "a handler that outlives its lease keeps it";
    53 harmless ["reject"] "refused duplicates do not touch the owner's claim";
}

async fn rejected(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("reject").act("after=1500");
    let running = probe.start(&call);
    probe.begun(1).await?;
    probe.send(&call).await?.is_in_progress()?;
    running.reply().await?.is_first(201)?;
    probe.ran(1).await
}

async fn then_replayed(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("reject").act("after=1000");
    let running = probe.start(&call);
    probe.begun(1).await?;
    probe.send(&call).await?.is(409)?;
    let first = running.reply().await?;
    // A slow store may have it a little later than the client.
    probe.settled(&call).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn waiting(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("wait").act("after=700");
    let running = probe.start(&call);
    probe.begun(1).await?;
    let second = probe.send(&call).await?;
    second.repeats(&running.reply().await?)?;
    probe.ran(1).await
}

async fn waiting_too_long(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("wait").act("after=6000");
    let running = probe.start(&call);
    probe.begun(1).await?;
    let started = Instant::now();
    probe.send(&call).await?.is_in_progress()?;
    let waited = started.elapsed();
    ensure(waited >= Duration::from_secs(1), || format!("it waited only {waited:?}"))?;
    running.reply().await?.is_first(201)
}

/// All at once: one runs, the others get its answer, or are told to come again.
async fn race(probe: &Probe, calls: Vec<Call>) -> Result<(), Wrong> {
    let replies = join_all(calls.iter().map(|call| probe.send(call))).await;
    let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut firsts = replies.iter().filter(|reply| reply.status == 201 && !reply.is_replayed());
    let first = firsts.next().cloned();
    let Some(first) = first.filter(|_| firsts.next().is_none()) else {
        return Err(Wrong::Failed("not exactly one got the handler's own answer".into()));
    };
    for reply in replies.iter().filter(|reply| reply.is_replayed() || reply.status != 201) {
        if reply.status == 409 { reply.is_in_progress()? } else { reply.repeats(&first)? }
    }
    probe.ran(1).await
}

async fn two_hundred(probe: Probe) -> Result<(), Wrong> {
    race(&probe, vec![probe.post("default").act("after=200"); 200]).await
}

async fn over_instances(probe: Probe) -> Result<(), Wrong> {
    let instances = probe.ground.bases.len();
    if instances < 2 {
        return Err(Wrong::Skipped("give the addresses of several instances".into()));
    }
    let call = probe.post("default").act("after=200");
    race(&probe, (0..200).map(|n| call.clone().instance(n % instances)).collect()).await
}

async fn next_waiter(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("wait");
    let running = probe.start(&call.clone().act("after=600 status=503"));
    probe.begun(1).await?;
    let calls = [(); 5].map(|()| call.clone().act("after=200"));
    let replies = join_all(calls.iter().map(|call| probe.send(call))).await;
    running.reply().await?.is_first(503)?;
    let mut first = 0;
    for reply in replies {
        let reply = reply?;
        reply.is(201)?;
        first += usize::from(!reply.is_replayed());
    }
    ensure(first == 1, || format!("{first} of five waiters ran it"))?;
    probe.ran(2).await
}

async fn waiter_leaves(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("wait").act("after=1200");
    let running = probe.start(&call);
    probe.begun(1).await?;
    let leaving = probe.start(&call);
    sleep(Duration::from_millis(300)).await;
    drop(leaving);
    let other = probe.send(&call).await?;
    other.repeats(&running.reply().await?)?;
    probe.ran(1).await
}

async fn long_run(probe: Probe) -> Result<(), Wrong> {
    // More than three leases.
    let (call, sent) = (probe.post("lease").act("after=6500"), Instant::now());
    let running = probe.start(&call);
    probe.begun(1).await?;
    while sent.elapsed() < Duration::from_secs(6) {
        let reply = probe.send(&call).await?;
        // Until then it runs for certain; an answer that took longer may be that of the first.
        if sent.elapsed() < Duration::from_millis(6500) {
            reply.is_in_progress()?;
        }
        sleep(Duration::from_millis(250)).await;
    }
    let first = running.reply().await?;
    first.is_first(201)?;
    probe.send(&call).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn harmless(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("reject").act("after=1500");
    let running = probe.start(&call);
    probe.begun(1).await?;
    for _ in 0..10 {
        probe.send(&call).await?.is(409)?;
        probe.send(&call.clone().body("{\"total\":100}")).await?.is(422)?;
    }
    let first = running.reply().await?;
    first.is_first(201)?;
    probe.send(&call).await?.repeats(&first)?;
    probe.ran(1).await
}
