//! The order service of the examples: orders come, every process is killed at random and started
//! again, the broker is killed and restarted. Then the rows are counted.
//!
//! `SEMEL_STORM_ORDERS` says how many orders: 10000 for the promise in full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use semel_testkit::services::{Private, Service};

use crate::shop::Shop;

/// How many orders the example sends by itself.
const FIRST: u32 = 100;

fn orders() -> u32 {
    std::env::var("SEMEL_STORM_ORDERS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

#[test]
fn orders_over_kafka() {
    // A member that was killed is to be missed as soon as those of the other brokers are.
    weather(Service::Kafka, &["--override", "group.min.session.timeout.ms=500"]);
}

#[test]
fn orders_over_rabbitmq() {
    weather(Service::Rabbitmq, &[]);
}

#[test]
fn orders_over_nats() {
    weather(Service::Nats, &[]);
}

#[test]
fn orders_over_redis() {
    // As it is by default, what a kill finds in its memory is lost.
    weather(Service::Redis, &["--appendfsync", "always"]);
}

fn weather(service: Service, options: &[&str]) {
    let Some(database) = Private::start(Service::Postgres) else { return };
    let Some(broker) = Private::start_with(service, options) else { return };
    let mut shop = Shop::open(service.as_str(), database.address(), broker.address());
    let said = shop.run_as_told();
    assert!(said.contains("mails                            100"), "{said}");
    shop.count_arrivals();

    let (orders, began) = (orders(), Instant::now());
    shop.start_all(orders);
    let over = AtomicBool::new(false);
    let (kills, restarts) = scope(|scope| {
        let restarting = scope.spawn(|| restart(&broker, &over));
        let ending = Ending(&over);
        let kills = kill(&mut shop, FIRST + orders);
        drop(ending);
        (kills, restarting.join().unwrap())
    });
    let took = began.elapsed();
    shop.wait_until_nothing_arrives();
    shop.stop_all();
    println!(
        "{}: {orders} orders in {took:.1?}, {kills} kills, {restarts} restarts of the broker, {}",
        service.as_str(),
        shop.figures()
    );
    shop.check_books(FIRST + orders);
}

/// The storm is over, also when a check failed in it.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Kills one process after the other until all orders have come to their end; says how many.
fn kill(shop: &mut Shop, orders: u32) -> usize {
    const LEAST: usize = 8;
    let patience = Duration::from_secs(120) + Duration::from_millis(100) * orders;
    let (mut random, mut kills, began) = (StdRng::seed_from_u64(7), 0, Instant::now());
    while kills < LEAST || !shop.is_finished(orders) {
        shop.assert_soon(began, patience);
        sleep(Duration::from_millis(random.random_range(200..1_500)));
        shop.kill(random.random_range(0..Shop::ROLES.len()));
        kills += 1;
        shop.start_what_ended();
    }
    kills
}

/// Restarts the broker again and again, every other time after a kill; says how often.
fn restart(broker: &Private, over: &AtomicBool) -> usize {
    let mut restarts = 0;
    while restarts == 0 || !over.load(Ordering::SeqCst) {
        if restarts % 2 == 0 {
            sleep(Duration::from_secs(1));
            broker.kill();
        }
        broker.restart();
        restarts += 1;
        let until = Instant::now() + Duration::from_secs(8);
        while Instant::now() < until && !over.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(50));
        }
    }
    restarts
}
