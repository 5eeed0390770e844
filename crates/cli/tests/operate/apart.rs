//! Several pipelines in one relay: one that fails leaves the others alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::shop::Shop;

/// An endpoint that has moved, until it is back; gives its address.
fn endpoint(is_back: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    serve(listener, is_back);
    address
}

pub(super) fn serve(listener: TcpListener, is_back: &Arc<AtomicBool>) {
    let is_back = Arc::clone(is_back);
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 8192]);
            // An event, or somebody who looks whether anybody is there.
            let is_whole = |request: &[u8]| {
                request.ends_with(if request.starts_with(b"POST") { b"{}" } else { b"\r\n" })
            };
            while !is_whole(&request) {
                match connection.read(&mut part).unwrap_or(0) {
                    0 => break,
                    bytes => request.extend_from_slice(&part[..bytes]),
                }
            }
            let is_back = is_back.load(Ordering::SeqCst);
            let status = if is_back { "204 No Content" } else { "301 Moved Permanently" };
            let head = "location: /new\r\ncontent-length: 0\r\nconnection: close";
            write!(connection, "HTTP/1.1 {status}\r\n{head}\r\n\r\n").ok();
        }
    });
}

#[test]
fn a_pipeline_that_fails_is_tried_again_while_the_others_go_on() {
    let (shop, is_back) = (Shop::new(), Arc::default());
    let config = shop.read("semel.toml");
    shop.write_config(&format!(
        "{config}[sink.hook]\ntype = \"webhook\"\nurl = \"http://{}/\"\nplain_http = true\n\
         allow = [\"127.0.0.1\"]\n[pipeline.hooks]\nfrom = \"orders\"\nto = \"hook\"\n",
        endpoint(&is_back)
    ));
    shop.insert_of_type("1", "First");
    let mut relay = shop.relay();
    shop.wait_until("it says so", || {
        shop.read("log").contains("it stopped and is tried again in 2s; the other pipelines go on")
    });
    assert!(shop.read("log").contains("E-WEBHOOK-MOVED"), "{}", shop.read("log"));
    shop.insert_of_type("1", "Second");
    shop.wait_until("the other one publishes", || shop.read("events.ndjson").contains("Second"));
    assert!(relay.0.try_wait().unwrap().is_none());

    is_back.store(true, Ordering::SeqCst);
    shop.wait_until("it catches up", || {
        let pipelines = shop.json(&["status"]);
        pipelines.as_array().unwrap().iter().all(|one| one["published"] == 2)
    });
    relay.signal("TERM");
    assert_eq!(relay.0.wait().unwrap().code(), Some(0));
}

/// An endpoint that takes every connection, keeps it open and never answers.
fn silent_endpoint() -> (String, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, taken) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            if sender.send(connection.unwrap()).is_err() {
                return;
            }
        }
    });
    (address, taken)
}

#[test]
fn an_endpoint_that_hangs_holds_up_nobody_else() {
    const TIMEOUT: Duration = Duration::from_secs(14);
    let (shop, (silent, taken)) = (Shop::new(), silent_endpoint());
    let answering = endpoint(&Arc::new(AtomicBool::new(true)));
    let pipeline = |name: &str, address: &str| {
        format!(
            "[sink.{name}]\ntype = \"webhook\"\nurl = \"http://{address}/\"\nplain_http = true\n\
             allow = [\"127.0.0.1\"]\ntimeout = \"14s\"\n\
             [pipeline.{name}]\nfrom = \"orders\"\nto = \"{name}\"\n"
        )
    };
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n{}{}",
        pipeline("silent", &silent),
        pipeline("answering", &answering)
    ));
    let published = |name: &str| {
        let pipelines = shop.json(&["status"]);
        let mut pipelines = pipelines.as_array().unwrap().iter();
        pipelines.find(|one| one["pipeline"] == name).unwrap()["published"].as_u64().unwrap()
    };
    shop.insert_of_type("1", "First");
    let _relay = shop.relay();
    let _hanging = taken.recv_timeout(Duration::from_secs(60)).unwrap();
    let began = Instant::now();
    for (count, kind) in (2..).zip(["Second", "Third", "Fourth"]) {
        shop.insert_of_type("1", kind);
        shop.wait_until("the other one publishes", || published("answering") == count);
    }
    // Nobody has lost patience with the silent one so far: the other one did not wait for that.
    assert!(began.elapsed() < TIMEOUT, "{:?}: {}", began.elapsed(), shop.log());
    assert_eq!(published("silent"), 0);
}
