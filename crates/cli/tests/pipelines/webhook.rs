//! A webhook at the end of a pipeline, and an alert about what it refuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fs, thread};

use serde_json::Value;

use crate::shop::{Shop, lines};

/// The next connection that brings an event: others only look whether anybody is there.
fn connection_with_an_event(listener: &TcpListener) -> BufReader<TcpStream> {
    loop {
        let mut reader = BufReader::new(listener.accept().unwrap().0);
        if reader.fill_buf().unwrap().starts_with(b"POST") {
            return reader;
        }
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

/// Answers each request with the next status; gives what it was sent.
fn endpoint(answers: &'static [&'static str]) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for answer in answers {
            let mut reader = connection_with_an_event(&listener);
            let (mut request, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let lower = line.to_ascii_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                request += &line;
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            request += &String::from_utf8(body).unwrap();
            let answer =
                format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (address, received)
}

fn send(shop: &Shop, kind: &str) {
    let event = ["--aggregate-type", "order", "--aggregate-id", kind, "--type", kind];
    let send = ["send", "--database", "sqlite://shop.db", "--payload", "{\"secret\":7}"];
    shop.expect(0, &[&send[..], &event].concat());
}

#[test]
fn what_an_endpoint_takes_is_signed_and_what_it_refuses_is_alerted() {
    let shop = Shop::new();
    let (address, received) = endpoint(&["204 No Content", "410 Gone"]);
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n\
         [sink.hook]\ntype = \"webhook\"\nurl = \"http://{address}/orders\"\nplain_http = true\n\
         allow = [\"127.0.0.1\"]\nsecret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n\
         [sink.alerts]\ntype = \"file\"\npath = \"alerts.ndjson\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"hook\"\nalert = \"alerts\"\n"
    ));
    send(&shop, "Placed");
    shop.expect(0, &["relay", "--drain"]);
    let request = received.recv().unwrap().to_ascii_lowercase();
    assert!(request.starts_with("post /orders http/1.1"), "{request}");
    assert!(request.contains("webhook-signature: v1,"), "{request}");
    assert!(request.ends_with("{\"secret\":7}"), "{request}");
    assert!(!shop.file("alerts.ndjson").metadata().is_ok_and(|file| file.len() > 0));

    send(&shop, "Refused");
    shop.expect(1, &["relay", "--drain"]);
    let alerts = fs::read_to_string(shop.file("alerts.ndjson")).unwrap();
    assert!(!alerts.contains("secret"), "no payload: {alerts}");
    let alerts = lines(&alerts);
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0]["event_type"], "DeadLettered");
    assert_eq!(alerts[0]["payload"]["count"], 1, "{}", alerts[0]);
    assert!(shop.expect(0, &["dead", "list"]).contains("Refused"));
}

#[test]
fn an_alert_goes_to_a_webhook_as_well() {
    let shop = Shop::new();
    let (orders, _received) = endpoint(&["410 Gone"]);
    let (night, alerts) = endpoint(&["204 No Content"]);
    let hook = |name: &str, address: &str| {
        format!(
            "[sink.{name}]\ntype = \"webhook\"\nurl = \"http://{address}/{name}\"\n\
             plain_http = true\nallow = [\"127.0.0.1\"]\n\
             secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n"
        )
    };
    let (orders, night) = (hook("orders", &orders), hook("night", &night));
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n{orders}{night}\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"orders\"\nalert = \"night\"\n"
    ));
    send(&shop, "Refused");
    shop.expect(1, &["relay", "--drain"]);
    let request = alerts.recv_timeout(Duration::from_secs(60)).expect("an alert");
    assert!(request.starts_with("POST /night HTTP/1.1"), "{request}");
    assert!(request.to_ascii_lowercase().contains("webhook-signature: v1,"), "{request}");
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(!body.contains("secret"), "no payload: {body}");
    let alert: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&alert["pipeline"], &alert["count"]), (&"orders".into(), &1.into()), "{alert}");
    assert_eq!(alert["letters"][0]["event_type"], "Refused", "{alert}");
}

/// How many requests it got, and how many of them at once at most.
#[derive(Default)]
struct Crowd {
    present: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

/// Takes its time for every event.
fn slow_endpoint() -> (String, Arc<Crowd>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let crowd = Arc::new(Crowd::default());
    let counted = Arc::clone(&crowd);
    thread::spawn(move || {
        loop {
            let mut reader = connection_with_an_event(&listener);
            let crowd = Arc::clone(&counted);
            thread::spawn(move || {
                crowd.all.fetch_add(1, Ordering::SeqCst);
                let present = crowd.present.fetch_add(1, Ordering::SeqCst) + 1;
                crowd.most.fetch_max(present, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(50));
                crowd.present.fetch_sub(1, Ordering::SeqCst);
                let answer = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
            });
        }
    });
    (address, crowd)
}

/// `concurrency` is that of the endpoint, however many pipelines lead to it.
#[test]
fn pipelines_to_one_endpoint_share_its_limits() {
    let shop = Shop::new();
    let (address, crowd) = slow_endpoint();
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n\
         [sink.hook]\ntype = \"webhook\"\nurl = \"http://{address}/orders\"\nplain_http = true\n\
         allow = [\"127.0.0.1\"]\nconcurrency = 1\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"hook\"\n\
         [pipeline.more]\nfrom = \"orders\"\nto = \"hook\"\n"
    ));
    for kind in ["A", "B", "C", "D", "E"] {
        send(&shop, kind);
    }
    shop.expect(0, &["relay", "--drain"]);
    assert_eq!(crowd.all.load(Ordering::SeqCst), 10);
    assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
}

#[test]
fn a_private_address_is_refused_unless_it_is_allowed() {
    let shop = Shop::new();
    shop.write_config(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n\
         [sink.hook]\ntype = \"webhook\"\nurl = \"https://127.0.0.1/orders\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"hook\"\n",
    );
    send(&shop, "Placed");
    let message = shop.refused(78, &["relay", "--drain"]);
    assert!(message.contains("127.0.0.1") && message.contains("allow"), "{message}");
}

#[test]
fn check_asks_whether_anybody_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let shop = Shop::new();
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n\
         [sink.hook]\ntype = \"webhook\"\nurl = \"http://{address}/orders\"\nplain_http = true\n\
         allow = [\"127.0.0.1\"]\nsecret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\n\
         [pipeline.orders]\nfrom = \"orders\"\nto = \"hook\"\n"
    ));
    let said = shop.expect(1, &["check"]);
    assert!(said.contains("sink.hook: "), "{said}");
    assert!(said.contains("pipeline.orders publishes nothing; its events wait"), "{said}");
}
