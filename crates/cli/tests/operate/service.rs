//! What systemd is told, as it hears it.

use std::fs;
use std::io::{Read, copy, sink};
use std::os::unix::net::UnixDatagram;
use std::process::{ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::shop::{Running, Shop};

const DEADLINE: Duration = Duration::from_secs(60);

/// The other end of `NOTIFY_SOCKET`, of one process.
struct Manager {
    told: Receiver<String>,
    relay: Running,
}

impl Manager {
    /// With what `Type=notify` and `WatchdogSec=` set; says where the log goes.
    fn start(shop: &Shop, name: &str, log: Stdio) -> Self {
        let (socket, path) = (UnixDatagram::bind(shop.file(name)).unwrap(), shop.file(name));
        let (sender, told) = channel();
        // Whoever is not listened to would have to wait.
        std::thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok(length) = socket.recv(&mut buffer) {
                let said = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if sender.send(said).is_err() {
                    break;
                }
            }
        });
        let mut command = shop.command(&["relay"]);
        let command = command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "1500000");
        let relay = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { told, relay: Running(relay) }
    }

    fn logging(shop: &Shop, name: &str) -> Self {
        let log = fs::File::create(shop.file("log")).unwrap();
        Self::start(shop, name, log.into())
    }

    /// Goes through what is told until it is this.
    fn hears(&self, wanted: &str) {
        let (deadline, mut heard) = (Instant::now() + DEADLINE, Vec::new());
        while let Some(rest) = deadline.checked_duration_since(Instant::now())
            && let Ok(said) = self.told.recv_timeout(rest)
        {
            if said.contains(wanted) {
                return;
            }
            heard.push(said);
        }
        panic!("never told: {wanted}, but {heard:#?}");
    }

    fn hears_signs_of_life(&self, number: usize) {
        (0..number).for_each(|_| self.hears("WATCHDOG=1"));
    }

    /// Whether signs of life stop for ten times as long as they are apart.
    fn hears_nothing_more(&self) -> bool {
        let began = Instant::now();
        let mut last = Instant::now();
        while began.elapsed() < DEADLINE {
            match self.told.recv_timeout(Duration::from_millis(100)) {
                Ok(said) if said.contains("WATCHDOG=1") => last = Instant::now(),
                _ if last.elapsed() > Duration::from_secs(5) => return true,
                _ => {}
            }
        }
        false
    }
}

#[test]
fn it_is_told_of_the_start_the_work_another_configuration_and_the_end() {
    let shop = Shop::new();
    let mut manager = Manager::logging(&shop, "notify");
    manager.hears("READY=1");
    manager.hears("STATUS=1 pipeline: orders working");
    manager.hears_signs_of_life(3);

    let right = shop.read("semel.toml");
    for text in [format!("{right}key = \"{{aggregate_id}}\"\n"), right.replace("out", "oat")] {
        shop.write_config(&text);
        manager.relay.signal("HUP");
        manager.hears("RELOADING=1\nMONOTONIC_USEC=");
        manager.hears("READY=1");
        manager.hears_signs_of_life(2);
    }
    manager.relay.signal("TERM");
    manager.hears("STOPPING=1\nSTATUS=stopping");
    assert_eq!(manager.relay.0.wait().unwrap().code(), Some(0));
}

#[test]
fn one_that_stands_by_says_so_and_is_alive() {
    let shop = Shop::new();
    let first = Manager::logging(&shop, "first");
    first.hears("STATUS=1 pipeline: orders working");
    let second = Manager::logging(&shop, "second");
    second.hears("STATUS=1 pipeline: orders standing by");
    second.hears_signs_of_life(3);
    first.relay.signal("TERM");
    second.hears("STATUS=1 pipeline: orders working");
}

#[cfg(feature = "webhook")]
#[test]
fn one_that_waits_for_the_broker_says_so_and_is_alive() {
    let shop = Shop::new();
    shop.insert_of_type("1", "OrderPlaced");
    shop.write_config(
        "[source.orders]\nurl = 'sqlite://shop.db'\n[sink.out]\ntype = 'webhook'\n\
         url = 'https://127.0.0.1:1/'\nallow = ['127.0.0.1']\n\
         [pipeline.orders]\nfrom = 'orders'\nto = 'out'\n",
    );
    let manager = Manager::logging(&shop, "notify");
    manager.hears("STATUS=1 pipeline: orders waiting for the broker");
    manager.hears_signs_of_life(6);
}

/// The loop writes dead letters to a log that nobody reads, until it can write no more.
#[test]
fn a_loop_that_stands_still_gives_no_sign_of_life() {
    let shop = Shop::new();
    shop.configure("topic = \"{header.tenant}\"");
    shop.execute(
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
         SELECT 'order', i, 'OrderPlaced', '{}' FROM n",
    );
    let mut manager = Manager::start(&shop, "notify", Stdio::piped());
    manager.hears("READY=1");
    assert!(manager.hears_nothing_more(), "a timer spoke for a loop that stands still");
    let log = manager.relay.0.stderr.take().unwrap();
    let read = std::thread::spawn(move || read_all(log));
    manager.hears_signs_of_life(3);
    manager.relay.signal("TERM");
    manager.hears("STOPPING=1");
    assert_eq!(manager.relay.0.wait().unwrap().code(), Some(0));
    assert!(read.join().unwrap() > 65_536, "the log was never full");
}

fn read_all(mut log: ChildStderr) -> u64 {
    copy(&mut log.by_ref(), &mut sink()).unwrap()
}
