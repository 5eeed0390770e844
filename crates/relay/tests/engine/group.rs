//! Several relays for one pipeline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::coordination::{Coordination, Coordinator, Share, Standing};
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryGroup, MemoryMember};
use semel_core::{Failure, Fault};
use semel_relay::{Group, Relay, Report, Settings, Stop, Stopper};
use semel_testkit::clock::VirtualClock;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::scripted::commit;

const LEASE: Duration = Duration::from_secs(10);

/// One outbox per share, and who is at work on each.
#[derive(Clone)]
struct Shop {
    databases: Arc<Vec<MemoryDatabase>>,
    broker: MemoryBroker,
    group: MemoryGroup,
    coordination: Coordination,
    /// How often each share was opened.
    opened: Arc<Mutex<Vec<Vec<&'static str>>>>,
}

impl Shop {
    fn new(coordination: Coordination) -> Self {
        let shares = coordination.shares();
        let clock = Arc::new(VirtualClock::start());
        Self {
            databases: Arc::new((0..shares).map(|_| MemoryDatabase::new()).collect()),
            broker: MemoryBroker::new(),
            group: MemoryGroup::new().with_clock(clock),
            coordination,
            opened: Arc::new(Mutex::new(vec![vec![]; shares as usize])),
        }
    }

    fn member(&self, name: &'static str, coordinator: impl Coordinator + 'static) -> Group {
        let shop = self.clone();
        Group::new("orders", coordinator, self.coordination, move |Share { number, .. }| {
            shop.opened.lock().unwrap()[number as usize].push(name);
            let source = shop.databases[number as usize].source();
            let sink = shop.broker.clone();
            let settings =
                Settings { poll_interval: Duration::from_millis(10), ..Settings::default() };
            async move { Ok(Relay::new("orders", source, sink).with_settings(settings)) }
        })
    }

    fn join(&self) -> MemoryMember {
        self.group.join("orders", self.coordination.shares(), LEASE)
    }

    fn start(&self, name: &'static str) -> (Stopper, JoinHandle<Result<Report, Failure>>) {
        self.start_with(name, self.join())
    }

    fn start_with(
        &self,
        name: &'static str,
        coordinator: impl Coordinator + 'static,
    ) -> (Stopper, JoinHandle<Result<Report, Failure>>) {
        let (stopper, stop) = Stop::new();
        (stopper, tokio::spawn(self.member(name, coordinator).run(stop)))
    }

    /// Who works on each share, as far as they were opened last.
    fn owners(&self) -> Vec<&'static str> {
        let opened = self.opened.lock().unwrap();
        opened.iter().map(|names| names.last().copied().unwrap_or("nobody")).collect()
    }

    async fn publishes_within(&self, share: usize, limit: Duration) -> Duration {
        let (began, before) = (Instant::now(), self.broker.messages().len());
        commit(&self.databases[share], &["a:1"]).await;
        while self.broker.messages().len() == before {
            assert!(began.elapsed() <= limit, "not published in {limit:?}");
            sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_another_takes_over_at_once_when_it_leaves() {
    let shop = Shop::new(Coordination::Leader);
    let (first, running) = shop.start("first");
    sleep(Duration::from_secs(1)).await;
    let (_second, _standing_by) = shop.start("second");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(*shop.opened.lock().unwrap(), [["first"]], "the other stands by");
    shop.publishes_within(0, Duration::from_millis(20)).await;
    first.stop();
    assert_eq!(running.await.unwrap().unwrap().published, 1);
    shop.publishes_within(0, Duration::from_secs(1)).await;
    assert_eq!(shop.owners(), ["second"]);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_leader_is_replaced_within_its_lease_and_a_second() {
    let shop = Shop::new(Coordination::Leader);
    let (_first, running) = shop.start("first");
    sleep(Duration::from_secs(1)).await;
    let (_second, _standing_by) = shop.start("second");
    sleep(Duration::from_secs(30)).await;
    running.abort();
    let took = shop.publishes_within(0, LEASE + Duration::from_secs(1)).await;
    assert!(took > LEASE / 2, "not before its lease is over: {took:?}");
    assert_eq!(shop.owners(), ["second"]);
}

/// Somebody without a lease opens the source, or the database was exchanged for a copy: whoever has the
/// lease opens it anew, whether there was something in flight or not.
#[tokio::test(start_paused = true)]
async fn a_share_that_was_lost_under_its_lease_is_opened_anew() {
    let shop = Shop::new(Coordination::Leader);
    let (stopper, running) = shop.start("first");
    shop.publishes_within(0, Duration::from_secs(1)).await;
    for times in 2..4 {
        let _intruder = shop.databases[0].source();
        shop.publishes_within(0, Duration::from_secs(2)).await;
        assert_eq!(shop.opened.lock().unwrap()[0].len(), times);
    }
    stopper.stop();
    running.await.unwrap().unwrap();
}

/// What is refused once will be refused again: to try it twice a second would only repeat what was
/// published beside it.
#[tokio::test(start_paused = true)]
async fn a_share_that_is_refused_is_not_opened_all_the_time() {
    let opened = Arc::new(Mutex::new(0));
    let member = MemoryGroup::new().with_clock(Arc::new(VirtualClock::start()));
    let counted = Arc::clone(&opened);
    let group =
        Group::new("orders", member.join("orders", 1, LEASE), Coordination::Leader, move |_| {
            *counted.lock().unwrap() += 1;
            async { Err(Failure::refused("E-TEST", "it does not fit")) }
        });
    let (_stopper, stop) = Stop::new();
    let running = tokio::spawn(group.run(stop));
    sleep(Duration::from_secs(65)).await;
    assert_eq!(*opened.lock().unwrap(), 3, "at once, and every thirty seconds");
    running.abort();
}

/// A store that can be cut off.
pub(crate) struct CutOff {
    pub(crate) member: MemoryMember,
    pub(crate) cut: Arc<AtomicBool>,
    pub(crate) hangs: bool,
}

impl CutOff {
    async fn reach(&self) -> Result<(), Failure> {
        if self.cut.load(Ordering::SeqCst) {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            return Err(Failure::unavailable("E-TEST", "cut off"));
        }
        Ok(())
    }
}

#[async_trait]
impl Coordinator for CutOff {
    fn lease(&self) -> Duration {
        self.member.lease()
    }

    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure> {
        self.reach().await?;
        self.member.beat(renews).await
    }

    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure> {
        self.reach().await?;
        self.member.claim(shares).await
    }

    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure> {
        self.reach().await?;
        self.member.release(shares).await
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        self.reach().await?;
        self.member.leave().await
    }
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_stops_before_another_may_begin() {
    for hangs in [false, true] {
        let shop = Shop::new(Coordination::Leader);
        let cut = Arc::new(AtomicBool::new(false));
        let member = CutOff { member: shop.join(), cut: Arc::clone(&cut), hangs };
        let (stopper, running) = shop.start_with("first", member);
        sleep(Duration::from_secs(20)).await;
        cut.store(true, Ordering::SeqCst);
        sleep(LEASE).await;
        commit(&shop.databases[0], &["a:1"]).await;
        sleep(LEASE).await;
        assert_eq!(shop.broker.messages().len(), 0, "it has stopped (hangs: {hangs})");
        cut.store(false, Ordering::SeqCst);
        shop.publishes_within(0, LEASE).await;
        assert_eq!(*shop.opened.lock().unwrap(), [["first", "first"]], "opened anew");
        cut.store(true, Ordering::SeqCst);
        stopper.stop();
        running.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn shares_move_when_members_come_crash_and_leave() {
    let shop = Shop::new(Coordination::Partitioned { shares: 6 });
    let (first, running) = shop.start("first");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(shop.owners(), ["first"; 6]);
    let (_second, second) = shop.start("second");
    let (third, _third) = shop.start("third");
    sleep(Duration::from_secs(5)).await;
    let count = |name| shop.owners().iter().filter(|owner| **owner == name).count();
    assert_eq!((count("first"), count("second"), count("third")), (2, 2, 2));
    for share in 0..6 {
        shop.publishes_within(share, Duration::from_millis(20)).await;
    }
    second.abort();
    sleep(LEASE + Duration::from_secs(1)).await;
    assert_eq!((count("first"), count("third")), (3, 3));
    third.stop();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(shop.owners(), ["first"; 6]);
    for share in 0..6 {
        shop.publishes_within(share, Duration::from_millis(20)).await;
    }
    first.stop();
    running.await.unwrap().unwrap();
    assert_eq!(shop.broker.messages().len(), 12, "each event once");
}

#[tokio::test(start_paused = true)]
async fn a_drain_takes_what_is_free_and_does_not_wait_for_a_living_relay() {
    let shop = Shop::new(Coordination::Partitioned { shares: 3 });
    for share in 0..3 {
        commit(&shop.databases[share], &["a:1", "b:1"]).await;
    }
    let mut crashed = shop.join();
    assert_eq!(crashed.claim(&[1]).await.unwrap(), [1]);
    let report = shop.member("drain", shop.join()).drain(Stop::never()).await.unwrap();
    assert_eq!(report.published, 6, "after the lease of the one that is gone");

    let (_stopper, _running) = shop.start("daemon");
    sleep(Duration::from_secs(2)).await;
    let coordination = shop.coordination;
    let busy = Group::new("orders", shop.join(), coordination, |_| async {
        std::future::pending::<Result<Relay, Failure>>().await
    });
    let refused = tokio::time::timeout(LEASE * 3, busy.drain(Stop::never())).await;
    assert!(refused.is_ok_and(|ended| {
        ended.is_err_and(|failure| {
            (failure.fault(), failure.code()) == (Fault::Transient, "E-RELAY-BUSY")
        })
    }));
}

#[tokio::test(start_paused = true)]
async fn what_is_misconfigured_ends_the_member_and_gives_all_back() {
    let shop = Shop::new(Coordination::Partitioned { shares: 2 });
    let group = Group::new("orders", shop.join(), shop.coordination, |share: Share| async move {
        match share.number {
            0 => std::future::pending().await,
            _ => Err(Failure::misconfigured("E-SCHEMA-MISSING", "no tables")),
        }
    });
    let ended = tokio::time::timeout(LEASE * 2, group.run(Stop::never())).await;
    assert_eq!(ended.unwrap().unwrap_err().code(), "E-SCHEMA-MISSING");
    assert_eq!(shop.join().claim(&[0, 1]).await.unwrap(), [0, 1]);
}
