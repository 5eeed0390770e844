//! A: whether there is a key, and how it is written.

use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    1 missing ["required"] "a missing key is refused where one is required";
    2 missing_link ["required"] "and the refusal links to documentation";
    3 unkeyed ["default"] "without a key a request passes untouched";
    4 safe_methods ["default"] "GET, HEAD and OPTIONS run every time, key or not";
    5 put_and_delete ["default" "methods"] "PUT and DELETE take keys only where the route says so";
    6 quoted ["default"] "quoted and bare are one key";
    7 strict_bare ["strict"] "a bare key is refused where quotes are required";
    8 escapes ["default"] "escapes in a quoted key are undone";
    9 parameters ["default"] "parameters of a quoted key are ignored";
    10 strict_types ["strict"] "other structured types are refused where a string is required";
    11 empty ["default"] "an empty key is refused";
    12 length ["default"] "255 bytes are a key, 256 are not";
    13 characters ["default"] "characters outside visible ASCII are refused";
    14 two_lines ["default"] "two keys are refused, even if equal";
    15 uuid ["uuid"] "where a UUID is asked for, anything else is refused";
    16 short ["long"] "where a length is asked for, shorter keys are refused";
    17 other_header ["header"] "a configured header takes the place of the usual one";
}

async fn missing(probe: Probe) -> Result<(), Wrong> {
    let reply = probe.send(&probe.post("required").without("idempotency-key")).await?;
    let problem = reply.problem(400)?;
    let kind = problem["type"].as_str().unwrap_or_default();
    ensure(kind.starts_with("http"), || format!("the type {kind:?} is no address"))?;
    ensure(reply.header("content-language").is_some(), || "no Content-Language".into())?;
    probe.ran(0).await
}

async fn missing_link(probe: Probe) -> Result<(), Wrong> {
    let reply = probe.send(&probe.post("required").without("idempotency-key")).await?;
    reply.is(400)?;
    let link = reply.header("link").unwrap_or_default();
    let is_right = link.starts_with('<') && link.contains("rel=\"describedby\"");
    ensure(is_right, || format!("Link is {link:?}"))
}

async fn unkeyed(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").without("idempotency-key");
    for _ in 0..2 {
        let reply = probe.send(&call).await?;
        reply.is(201)?;
        let ours = reply.headers.keys().find(|name| name.as_str().starts_with("idempot"));
        ensure(ours.is_none(), || format!("the answer has {ours:?}"))?;
    }
    probe.ran(2).await
}

async fn safe_methods(probe: Probe) -> Result<(), Wrong> {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let call = probe.post("default").method(method).body("");
        for _ in 0..2 {
            let reply = probe.send(&call).await?;
            ensure(!reply.is_replayed(), || format!("{method} was replayed"))?;
        }
    }
    probe.ran(6).await?;
    probe.send(&probe.post("default")).await?.is_first(201)
}

async fn put_and_delete(probe: Probe) -> Result<(), Wrong> {
    for method in ["PUT", "DELETE"] {
        let call = probe.anew().post("default").method(method);
        for _ in 0..2 {
            probe.send(&call).await?.is_first(201)?;
        }
        let call = probe.anew().post("methods").method(method);
        let first = probe.send(&call).await?;
        first.is_first(201)?;
        probe.send(&call).await?.repeats(&first)?;
    }
    probe.ran(6).await
}

/// That these are one key.
async fn same(probe: &Probe, spellings: [&str; 2]) -> Result<(), Wrong> {
    let [one, other] = spellings.map(|key| probe.post("default").key(key.as_bytes()));
    let first = probe.send(&one).await?;
    first.is_first(201)?;
    probe.send(&other).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn quoted(probe: Probe) -> Result<(), Wrong> {
    same(&probe, [&format!("\"{}\"", probe.key), &probe.key]).await
}

async fn escapes(probe: Probe) -> Result<(), Wrong> {
    let (quoted, bare) = (format!(r#""{}a\"b\\c""#, probe.key), format!(r#"{}a"b\c"#, probe.key));
    same(&probe, [&quoted, &bare]).await
}

async fn parameters(probe: Probe) -> Result<(), Wrong> {
    same(&probe, [&format!("\"{}\";p=1", probe.key), &format!("\"{}\"", probe.key)]).await
}

/// That each of these is refused on a route, with a reason that has one of the words.
async fn refused(probe: &Probe, route: &str, keys: &[&[u8]], words: &[&str]) -> Result<(), Wrong> {
    for key in keys {
        let reply = probe.send(&probe.post(route).key(key)).await?;
        let problem = reply.problem(400)?;
        let detail = problem["detail"].as_str().unwrap_or_default();
        let is_told = words.is_empty() || words.iter().any(|word| detail.contains(word));
        ensure(is_told, || format!("the detail {detail:?} does not say {words:?}"))?;
    }
    probe.ran(0).await
}

async fn strict_bare(probe: Probe) -> Result<(), Wrong> {
    let bare = probe.key.clone();
    refused(&probe, "strict", &[bare.as_bytes()], &["Structured Field", "quote"]).await?;
    let quoted = probe.post("strict").key(format!("\"{bare}\"").as_bytes());
    probe.send(&quoted).await?.is_first(201)
}

async fn strict_types(probe: Probe) -> Result<(), Wrong> {
    let others: [&[u8]; 5] = [b"42", b"token", b":YWJj:", b"\"a\", \"b\"", b"(\"a\" \"b\")"];
    refused(&probe, "strict", &others, &[]).await
}

async fn empty(probe: Probe) -> Result<(), Wrong> {
    refused(&probe, "default", &[b"", b"   ", b"\"\""], &[]).await
}

async fn length(probe: Probe) -> Result<(), Wrong> {
    let longest = format!("{:k<255}", probe.key);
    let call = probe.post("default").key(longest.as_bytes());
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    probe.send(&call).await?.repeats(&first)?;
    let longer = format!("{longest}k");
    probe.send(&probe.post("default").key(longer.as_bytes())).await?.problem(400)?;
    probe.ran(1).await
}

async fn characters(probe: Probe) -> Result<(), Wrong> {
    let keys: [&[u8]; 3] = ["schl\u{fc}ssel".as_bytes(), b"\xff", b"a\tb"];
    refused(&probe, "default", &keys, &[]).await
}

async fn two_lines(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").header("idempotency-key", &probe.key);
    probe.send(&call).await?.problem(400)?;
    probe.ran(0).await
}

async fn uuid(probe: Probe) -> Result<(), Wrong> {
    refused(&probe, "uuid", &[b"order-42"], &["UUID"]).await?;
    probe.send(&probe.post("uuid")).await?.is_first(201)
}

async fn short(probe: Probe) -> Result<(), Wrong> {
    refused(&probe, "long", &[b"123456789012345"], &["16"]).await?;
    probe.send(&probe.post("long").key(&probe.key.as_bytes()[..16])).await?.is_first(201)
}

async fn other_header(probe: Probe) -> Result<(), Wrong> {
    let key = probe.key.clone();
    let call = probe.post("header").header("paypal-request-id", &key);
    let first = probe.send(&call.clone().without("idempotency-key")).await?;
    first.is_first(201)?;
    // The usual one means nothing here.
    probe.send(&call.key(b"another")).await?.repeats(&first)?;
    let usual = probe.post("header");
    for _ in 0..2 {
        probe.send(&usual).await?.is_first(201)?;
    }
    probe.ran(3).await
}
