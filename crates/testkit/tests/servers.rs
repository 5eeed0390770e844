//! A server of a test's own survives being killed and frozen, with its data.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use semel_testkit::services::{Private, Service};

fn say(server: &Private, line: &str) -> std::io::Result<String> {
    let address = server.address().strip_prefix("redis://").unwrap();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

#[test]
fn a_private_server_can_be_killed_frozen_and_started_again() {
    let Some(server) = Private::start(Service::Redis) else { return };
    assert_eq!(say(&server, "INCR counter").unwrap(), ":1");
    server.freeze();
    assert!(say(&server, "INCR counter").is_err(), "nothing answers");
    server.thaw();
    std::thread::sleep(Duration::from_millis(1_100)); // until it is on the disk
    server.kill();
    assert!(say(&server, "PING").is_err(), "nobody is there");
    server.restart();
    assert_eq!(say(&server, "INCR counter").unwrap(), ":3", "what came while it was frozen counts");
}
