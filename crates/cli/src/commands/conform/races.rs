//! D: several at once.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::call::Call;
use super::probe::{Probe, Started, ensure};
use super::reply::Reply;
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
    for after in longer_and_longer(1500) {
        let running = Running::start(&probe, "reject", after).await?;
        let second = running.duplicate().await?;
        if running.is_certain() {
            second.is_in_progress()?;
            return running.ends_alone().await;
        }
    }
    Err(too_slow())
}

async fn then_replayed(probe: Probe) -> Result<(), Wrong> {
    for after in longer_and_longer(1000) {
        let running = Running::start(&probe, "reject", after).await?;
        let second = running.duplicate().await?;
        if running.is_certain() {
            second.is(409)?;
            return running.ends_alone().await;
        }
    }
    Err(too_slow())
}

async fn waiting(probe: Probe) -> Result<(), Wrong> {
    for after in longer_and_longer(700) {
        let running = Running::start(&probe, "wait", after).await?;
        let (is_early, asked) = (running.is_certain(), Instant::now());
        let second = running.duplicate().await?;
        if is_early && !is_out_of_patience(&second, asked) {
            return running.answers(&second).await;
        }
    }
    Err(too_slow())
}

async fn waiting_too_long(probe: Probe) -> Result<(), Wrong> {
    for after in longer_and_longer(6000) {
        let running = Running::start(&probe, "wait", after).await?;
        let asked = Instant::now();
        let second = running.duplicate().await?;
        let waited = asked.elapsed();
        if running.is_certain() {
            second.is_in_progress()?;
            ensure(waited >= Duration::from_secs(1), || format!("it waited only {waited:?}"))?;
            return running.ends_alone().await;
        }
    }
    Err(too_slow())
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
    // On a slow machine the first may take longer than they wait.
    let replies = join_all(calls.iter().map(|call| probe.settled(call))).await;
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
    for after in longer_and_longer(1200) {
        let running = Running::start(&probe, "wait", after).await?;
        let leaving = running.probe.start(&running.call);
        sleep(Duration::from_millis(300)).await;
        drop(leaving);
        let (is_early, asked) = (running.is_certain(), Instant::now());
        let other = running.duplicate().await?;
        if is_early && !is_out_of_patience(&other, asked) {
            return running.answers(&other).await;
        }
    }
    Err(too_slow())
}

async fn long_run(probe: Probe) -> Result<(), Wrong> {
    // More than three leases.
    let running = Running::start(&probe, "lease", 13_000).await?;
    while running.is_certain() {
        let reply = running.duplicate().await?;
        if running.is_certain() {
            reply.is_in_progress()?;
        }
        sleep(Duration::from_millis(250)).await;
    }
    running.ends_alone().await
}

async fn harmless(probe: Probe) -> Result<(), Wrong> {
    for after in longer_and_longer(1500) {
        let running = Running::start(&probe, "reject", after).await?;
        let other = running.call.clone().body("{\"total\":100}");
        let mut pairs = 0;
        while pairs < 10 {
            let reply = running.duplicate().await?;
            if !running.is_certain() {
                break;
            }
            reply.is(409)?;
            running.probe.send(&other).await?.is(422)?;
            pairs += 1;
        }
        if pairs > 0 {
            return running.ends_alone().await;
        }
    }
    Err(too_slow())
}

/// How long the handler takes, in milliseconds: longer each time, for an endpoint or a machine that
/// is too slow to show what a duplicate gets while it runs.
fn longer_and_longer(first: u64) -> impl Iterator<Item = u64> {
    (0..4).map(move |times| first << times)
}

fn too_slow() -> Wrong {
    Wrong::Failed("it answers too slowly to show it, four times".into())
}

/// Whether a waiter was told to come again after it had waited as long as the route has it.
fn is_out_of_patience(reply: &Reply, asked: Instant) -> bool {
    reply.status == 409 && asked.elapsed() >= Duration::from_secs(3)
}

/// A handler that has begun, in a corner of its own.
struct Running {
    probe: Probe,
    call: Call,
    first: Started,
    sent: Instant,
    takes: Duration,
}

impl Running {
    async fn start(probe: &Probe, route: &str, after: u64) -> Result<Self, Wrong> {
        let probe = Probe::new(&probe.ground);
        let call = probe.post(route).act(&format!("after={after}"));
        let (sent, first) = (Instant::now(), probe.start(&call));
        probe.begun(1).await?;
        Ok(Self { probe, call, first, sent, takes: Duration::from_millis(after) })
    }

    /// Whether it runs for certain: it began after it was sent. Later it may have ended.
    fn is_certain(&self) -> bool {
        self.sent.elapsed() < self.takes
    }

    async fn duplicate(&self) -> Result<Reply, Wrong> {
        self.probe.send(&self.call).await
    }

    /// That it ends as if there were no duplicates, and is replayed from then on.
    async fn ends_alone(self) -> Result<(), Wrong> {
        let Self { probe, call, first, .. } = self;
        let first = first.reply().await?;
        first.is_first(201)?;
        // A slow store may have it a little later than the client.
        probe.settled(&call).await?.repeats(&first)?;
        probe.ran(1).await
    }

    /// That a waiter got its answer.
    async fn answers(self, waiter: &Reply) -> Result<(), Wrong> {
        let Self { probe, first, .. } = self;
        waiter.repeats(&first.reply().await?)?;
        probe.ran(1).await
    }
}
