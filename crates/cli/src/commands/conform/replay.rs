//! B: the first request, and its repetitions.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::call::Call;
use super::probe::{Probe, ensure};
use super::reply::Reply;
use super::{Wrong, behaviours};

behaviours! {
    18 first ["default"] "the first answer is the handler's, unchanged";
    19 retry ["default"] "a retry gets the same answer, marked, and nothing runs";
    20 thousand ["default"] "so do a thousand";
    21 elsewhere ["default"] "and one that reaches another instance";
    23 headers ["default"] "headers are replayed, repeated ones in their order";
    24 refused_headers ["headers"] "cookies, credentials and headers of the connection are not";
    25 length_and_date ["default"] "a replay has its own date, and a length";
    26 no_content ["default"] "204 is replayed as 204";
    27 all_bytes ["default"] "every byte is replayed";
    28 encoded ["default"] "a compressed body is replayed with its coding";
    29 canonical ["canonical"] "by meaning: JSON in another order is the same request";
    30 raw ["raw"] "by bytes: JSON in another order is another request";
    31 irrelevant ["default"] "headers such as traceparent make no difference";
    32 empty_body ["default"] "an empty body is a body";
    33 no_store ["default"] "replays are not cached, unless the handler said otherwise";
    34 cross_origin ["default"] "browsers of other origins may read the marker";
}

/// Sends it twice: the first is 201, the second its replay.
async fn twice(probe: &Probe, call: &Call) -> Result<[Reply; 2], Wrong> {
    let first = probe.send(call).await?;
    ensure(!first.is_replayed(), || format!("{first} is marked as a replay"))?;
    let second = probe.send(call).await?;
    second.repeats(&first)?;
    Ok([first, second])
}

async fn first(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").act("status=202").respond_with("x-thing: 7");
    let reply = probe.send(&call).await?;
    reply.is_first(202)?;
    ensure(reply.body == "{\"order\":1}", || format!("{reply} is not what the handler said"))?;
    let expected = (Some("/orders/1"), Some("7"), Some("application/json"));
    let got = (reply.header("location"), reply.header("x-thing"), reply.header("content-type"));
    ensure(got == expected, || format!("headers {got:?} where {expected:?} are right"))
}

async fn retry(probe: Probe) -> Result<(), Wrong> {
    let [first, _] = twice(&probe, &probe.post("default")).await?;
    first.is_first(201)?;
    probe.ran(1).await
}

async fn thousand(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    let retries = stream::iter(0..1000).map(|_| async { probe.send(&call).await?.repeats(&first) });
    retries.buffer_unordered(20).try_collect::<Vec<()>>().await?;
    probe.ran(1).await
}

async fn elsewhere(probe: Probe) -> Result<(), Wrong> {
    let instances = probe.ground.bases.len();
    if instances < 2 {
        return Err(Wrong::Skipped("give the addresses of several instances".into()));
    }
    let first = probe.send(&probe.post("default")).await?;
    first.is_first(201)?;
    for instance in 1..instances {
        probe.send(&probe.post("default").instance(instance)).await?.repeats(&first)?;
    }
    probe.ran(1).await
}

async fn headers(probe: Probe) -> Result<(), Wrong> {
    let lines = [
        "etag: \"7\"",
        "content-language: en",
        "content-disposition: attachment",
        "x-part: one",
        "x-part: two",
    ];
    let call = lines.iter().fold(probe.post("default"), |call, line| call.respond_with(line));
    let [first, second] = twice(&probe, &call).await?;
    for name in ["content-type", "location", "etag", "content-language", "content-disposition"] {
        let (before, after) = (first.header(name), second.header(name));
        ensure(before.is_some() && before == after, || {
            format!("{name} was {before:?} and is {after:?}")
        })?;
    }
    let parts = second.lines("x-part");
    ensure(parts == [b"one", b"two"], || format!("repeated headers came as {parts:?}"))
}

async fn refused_headers(probe: Probe) -> Result<(), Wrong> {
    let names = [
        "set-cookie",
        "authorization",
        "www-authenticate",
        "proxy-authenticate",
        "keep-alive",
        "te",
        "upgrade",
    ];
    let call = probe.post("headers").respond_with("x-fine: 1");
    let call = names.iter().fold(call, |call, name| call.respond_with(&format!("{name}: a=b")));
    let [first, second] = twice(&probe, &call).await?;
    ensure(first.header("set-cookie").is_some(), || "the first client got no cookie".into())?;
    ensure(second.header("x-fine").is_some(), || "a harmless header was not replayed".into())?;
    let shown: Vec<_> = names.iter().filter(|name| second.header(name).is_some()).collect();
    ensure(shown.is_empty(), || format!("{shown:?} were replayed"))
}

async fn length_and_date(probe: Probe) -> Result<(), Wrong> {
    const LONG_AGO: &str = "Thu, 01 Jan 1970 00:00:00 GMT";
    let call = probe.post("default").act("pieces").respond_with(&format!("date: {LONG_AGO}"));
    let [first, second] = twice(&probe, &call).await?;
    let length = second.header("content-length").and_then(|length| length.parse().ok());
    ensure(length == Some(first.body.len()), || format!("Content-Length is {length:?}"))?;
    let date = second.header("date");
    ensure(date.is_some_and(|date| date != LONG_AGO), || format!("Date is {date:?}"))
}

async fn no_content(probe: Probe) -> Result<(), Wrong> {
    let [first, second] = twice(&probe, &probe.post("default").act("status=204")).await?;
    first.is(204)?;
    ensure(second.body.is_empty(), || format!("{second} has a body"))
}

async fn all_bytes(probe: Probe) -> Result<(), Wrong> {
    let all: Vec<u8> = (0..=255).collect();
    let call = probe.post("default").instead("content-type", "application/octet-stream");
    let [first, _] = twice(&probe, &call.act("echo").body(all.clone())).await?;
    ensure(first.body == all, || "the first answer is not what the handler said".into())
}

async fn encoded(probe: Probe) -> Result<(), Wrong> {
    // "paid", compressed.
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\x2b\x48\xcc\x4c\x01\x00\
        \x66\xf9\x16\x40\x04\x00\x00\x00";
    let call = probe.post("default").instead("content-type", "application/octet-stream");
    let call = call.act("echo").body(GZIP).respond_with("content-encoding: gzip");
    let [first, second] = twice(&probe, &call).await?;
    ensure(first.body == GZIP, || "the first answer is not what the handler said".into())?;
    let coding = second.header("content-encoding");
    ensure(coding == Some("gzip"), || format!("Content-Encoding is {coding:?}"))
}

const IN_ORDER: &str = "{\"a\":1,\"b\":[2,3]}";
const IN_ANOTHER: &str = "{ \"b\" : [2, 3], \"a\" : 1 }";

async fn canonical(probe: Probe) -> Result<(), Wrong> {
    let first = probe.send(&probe.post("canonical").body(IN_ORDER)).await?;
    first.is_first(201)?;
    probe.send(&probe.post("canonical").body(IN_ANOTHER)).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn raw(probe: Probe) -> Result<(), Wrong> {
    probe.send(&probe.post("raw").body(IN_ORDER)).await?.is_first(201)?;
    probe.send(&probe.post("raw").body(IN_ANOTHER)).await?.problem(422)?;
    probe.ran(1).await
}

async fn irrelevant(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    for (name, value) in [
        ("user-agent", "another/2"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x-request-id", "7"),
    ] {
        probe.send(&call.clone().header(name, value)).await?.repeats(&first)?;
    }
    probe.ran(1).await
}

async fn empty_body(probe: Probe) -> Result<(), Wrong> {
    twice(&probe, &probe.post("default").without("content-type").body("")).await?;
    probe.ran(1).await
}

async fn no_store(probe: Probe) -> Result<(), Wrong> {
    let [_, second] = twice(&probe, &probe.post("default")).await?;
    let own = probe.anew().post("default").respond_with("cache-control: max-age=5");
    let [_, other] = twice(&probe, &own).await?;
    let got = (second.header("cache-control"), other.header("cache-control"));
    ensure(got == (Some("no-store"), Some("max-age=5")), || format!("Cache-Control: {got:?}"))
}

async fn cross_origin(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").header("origin", "https://shop.example");
    let call = call.respond_with("access-control-allow-origin: https://shop.example");
    let [_, second] = twice(&probe, &call).await?;
    let origin = second.header("access-control-allow-origin");
    ensure(origin == Some("https://shop.example"), || format!("allowed origin: {origin:?}"))?;
    let exposed = second.lines("access-control-expose-headers").join(&b", "[..]);
    let exposed = String::from_utf8_lossy(&exposed).to_lowercase();
    let is_right = ["idempotent-replayed", "retry-after"].iter().all(|it| exposed.contains(it));
    ensure(is_right, || format!("exposed headers: {exposed:?}"))
}
