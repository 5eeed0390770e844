//! Requests that a front and a back could read differently.

use super::program::Program;
use super::upstream::Upstream;

const HIDDEN: &str = "POST /hidden HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n";

/// Of each, the upstream sees one request or none, and never the hidden one.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_smuggled_past_it() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let start = "POST /orders HTTP/1.1\r\nhost: shop\r\n";
    let chunked = "transfer-encoding: chunked\r\n";
    let attempts = [
        // A length and a coding, in both orders: what comes after the chunks is not read.
        format!("{start}content-length: 4\r\n{chunked}\r\n1\r\nx\r\n0\r\n\r\n{HIDDEN}"),
        format!("{start}{chunked}content-length: 4\r\n\r\n1\r\nx\r\n0\r\n\r\n{HIDDEN}"),
        // The hidden one would be the rest of a body.
        format!("{start}content-length: 6\r\n{chunked}\r\n0\r\n\r\n{HIDDEN}"),
        // Lengths that differ, or are no lengths.
        format!("{start}content-length: 0\r\ncontent-length: 73\r\n\r\n{HIDDEN}"),
        format!("{start}content-length: +0\r\n\r\n{HIDDEN}"),
        format!("{start}content-length: 0, 73\r\n\r\n{HIDDEN}"),
        // Codings that some do not recognise.
        format!("{start}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("{start}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("{start}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("{start}transfer-encoding : chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        format!("{start}x: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"),
        // HTTP/1.0 has no codings.
        format!("POST /orders HTTP/1.0\r\nhost: shop\r\n{chunked}\r\n0\r\n\r\n{HIDDEN}"),
        // Two hosts, no host, no plain path.
        format!("{start}host: evil\r\ncontent-length: 0\r\n\r\n"),
        "POST http://evil/orders HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "POST /orders HTTP/1.1\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "POST /public/../hidden HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "CONNECT evil:80 HTTP/1.1\r\nhost: evil:80\r\n\r\n".to_owned(),
    ];
    for attempt in &attempts {
        let before = upstream.taken();
        // It ends every one of these connections by itself.
        let answer = proxy.client.say(attempt.as_bytes()).await;
        let answer = String::from_utf8_lossy(&answer);
        let seen = upstream.heads()[before..].to_vec();
        assert!(seen.len() <= 1, "{attempt:?} became {seen:?}");
        assert!(seen.iter().all(|head| !head.contains("hidden")), "{attempt:?} became {seen:?}");
        if seen.is_empty() {
            let refused = ["400", "501"].map(|status| format!("HTTP/1.1 {status}"));
            let is_refused = refused.iter().any(|line| answer.starts_with(line))
                || answer.starts_with("HTTP/1.0 400");
            assert!(is_refused, "{attempt:?} got {answer:?}");
        } else {
            let framings = ["content-length:", "transfer-encoding:"];
            let count = framings.iter().filter(|name| seen[0].contains(*name)).count();
            assert_eq!(count, 1, "{attempt:?} became {seen:?}");
        }
    }
    assert_eq!(proxy.client.post("/orders", Some("k"), "1").await.status, 201, "it still works");
}
