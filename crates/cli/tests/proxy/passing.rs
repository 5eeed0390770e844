//! What has no key passes as it comes; what has one is passed on in full.

use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::PATIENCE;
use super::program::Program;
use super::upstream::Upstream;

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_without_a_key_is_streamed() {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 64;
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "max_request = \"1KiB\"");
    for (coding, chunked) in [
        ("transfer-encoding: chunked".to_owned(), true),
        (format!("content-length: {}", PIECE * PIECES), false),
    ] {
        let head =
            format!("POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{coding}\r\n\r\n");
        let mut stream = proxy.client.open(head.as_bytes()).await;
        let before = if chunked { 0 } else { PIECE * PIECES };
        for piece in 1..=PIECES {
            if chunked {
                stream.write_all(format!("{PIECE:x}\r\n").as_bytes()).await.unwrap();
            }
            stream.write_all(&vec![b'x'; PIECE]).await.unwrap();
            if chunked {
                stream.write_all(b"\r\n").await.unwrap();
            }
            if piece == 1 {
                upstream.until_read(before + PIECE).await;
            }
        }
        if chunked {
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&answer));
        upstream.until_read(before + PIECE * PIECES).await;
    }
    let large = "x".repeat(2000);
    let reply = proxy.client.post("/orders", Some("k"), &large).await;
    assert_eq!((reply.status, reply.problem()), (413, "body-too-large"));
    assert_eq!(upstream.taken(), 2, "with a key it is held to the limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_streamed() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let request = b"GET /stream HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
    let mut stream = proxy.client.open(request).await;
    let mut seen = Vec::new();
    let first = async {
        while !seen.ends_with(b"first\r\n") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
        }
    };
    timeout(PATIENCE, first).await.expect("the first piece comes while the second is not there");
    upstream.open_gate();
    timeout(PATIENCE, stream.read_to_end(&mut seen)).await.unwrap().unwrap();
    assert!(seen.ends_with(b"4\r\nlast\r\n0\r\n\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_the_connection_stay_and_ours_are_added() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let request = "POST /echo?a=b HTTP/1.1\r\nhost: shop.example\r\nauthorization: acme\r\n\
        idempotency-key: k\r\nidempotency-attempt: 77\r\nidempotency-fence: 99\r\n\
        x-forwarded-for: 10.0.0.1\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: 5\r\n\
        te: deflate\r\nexpect: nothing\r\ncontent-length: 2\r\n\r\n{}";
    let reply = proxy.client.ask(request).await;
    assert_eq!(reply.status, 200);
    let seen = reply.text();
    for there in [
        "post /echo?a=b http/1.1",
        "host: shop.example\r\n",
        "idempotency-key: k\r\n",
        "idempotency-attempt: 1\r\n",
        "x-forwarded-for: 10.0.0.1, 127.0.0.1\r\n",
        "via: 1.1 semel\r\n",
        "content-length: 2\r\n",
        "idempotency-fence: ",
        "te: trailers\r\n",
    ] {
        assert!(seen.contains(there), "{there:?} is not in {seen}");
    }
    for gone in ["x-hop", "keep-alive", "deflate", "expect", "attempt: 77", "fence: 99"] {
        assert!(!seen.contains(gone), "{gone:?} is in {seen}");
    }
    let reply = proxy.client.post("/orders", Some("k2"), "1").await;
    assert_eq!((reply.header("x-hop"), reply.header("set-cookie")), (None, Some("a=b")));
    let again = proxy.client.post("/orders", Some("k2"), "1").await;
    assert_eq!((again.header("location"), again.header("set-cookie")), (Some("/orders/1"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_http_1_is_the_same_in_http_2() {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, "memory:", "");
    let first = proxy.client.post("/orders", Some("k"), "1").await;
    let client: Client<_, Full<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = http::Request::post(format!("http://{}/orders", proxy.client.address))
        .header("authorization", "acme")
        .header("content-type", "application/json")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    let keyed = request.header("idempotency-key", "k").body(Full::from("1")).unwrap();
    let second = timeout(PATIENCE, client.request(keyed)).await.unwrap().unwrap();
    assert_eq!((second.version(), second.status().as_u16()), (http::Version::HTTP_2, 201));
    assert_eq!(second.headers()["idempotent-replayed"], "true");
    assert_eq!(second.into_body().collect().await.unwrap().to_bytes(), first.body);
    assert_eq!(upstream.taken(), 1);

    let request = http::Request::post(format!("http://{}/echo", proxy.client.address))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::from("1"))
        .unwrap();
    let echo = timeout(PATIENCE, client.request(request)).await.unwrap().unwrap();
    let seen = echo.into_body().collect().await.unwrap().to_bytes();
    let seen = String::from_utf8(seen.to_vec()).unwrap();
    assert!(seen.contains("cookie: a=1; b=2\r\n"), "{seen}");
    assert!(seen.contains(&format!("host: {}", proxy.client.address)), "{seen}");
}

/// Its connection is not left to others before the rest of the request has gone through it.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_end_of_its_request_holds_up_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_heads(stream));
        }
    });
    let proxy = Program::start(&address, "memory:", "");
    let begun = b"POST /early HTTP/1.1\r\nhost: shop\r\ncontent-length: 100\r\n\r\nbegun";
    // As many as there are workers, and more.
    let mut early = Vec::new();
    for _ in 0..16 {
        let mut stream = proxy.client.open(begun).await;
        let answered = async {
            let mut seen = Vec::new();
            while !seen.ends_with(b"ok") {
                assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "{seen:?}");
            }
        };
        timeout(PATIENCE, answered).await.expect("an answer before the end");
        early.push(stream);
    }
    for _ in 0..32 {
        assert_eq!(proxy.client.get("/orders").await.status, 200);
    }
    drop(early);
}

/// Answers as soon as a head has come, and reads what else comes.
async fn answer_heads(mut stream: TcpStream) {
    let mut piece = vec![0; 65_536];
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        let is_head = [&b"GET "[..], b"POST "].iter().any(|it| piece[..count].starts_with(it));
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        if is_head && stream.write_all(answer).await.is_err() {
            return;
        }
    }
}
