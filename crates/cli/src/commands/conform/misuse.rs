//! C: a key under another request than its own.

use super::call::Call;
use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    35 other_body ["default"] "another body under the key is refused, and harms nothing";
    36 while_running ["default"] "also while the first runs: 422, not 409";
    37 other_query ["tenant"] "another query is another request";
    38 other_path ["tenant" "endpoint"] "another path is refused, or another operation, as the route says";
    39 other_method ["tenant"] "another method is refused";
    40 silent ["default"] "the refusal tells nothing of what is stored";
    41 stripe ["stripe"] "in Stripe's profile it is 400 with idempotency_error";
    42 again_and_again ["default"] "a wrong request stays wrong";
    43 ambiguous ["canonical"] "JSON with two members of one name is refused";
}

async fn other_body(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    let reply = probe.send(&call.clone().body("{\"total\":100}")).await?;
    reply.problem(422)?;
    let link = reply.header("link").unwrap_or_default();
    ensure(link.contains("describedby"), || format!("Link is {link:?}"))?;
    probe.send(&call).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn while_running(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default").act("after=1500");
    let running = probe.start(&call);
    probe.begun(1).await?;
    probe.send(&call.clone().body("{\"total\":100}")).await?.problem(422)?;
    running.reply().await?.is_first(201)?;
    probe.ran(1).await
}

/// That the second is refused after the first.
async fn refused(probe: &Probe, first: &Call, second: &Call) -> Result<(), Wrong> {
    probe.send(first).await?.is_first(201)?;
    probe.send(second).await?.problem(422)?;
    probe.ran(1).await
}

async fn other_query(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("tenant");
    refused(&probe, &call.clone().path("orders?a=1"), &call.path("orders?a=2")).await
}

async fn other_path(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("tenant");
    refused(&probe, &call, &call.clone().path("refunds")).await?;
    let other = probe.anew();
    for path in ["orders", "refunds"] {
        other.send(&other.post("endpoint").path(path)).await?.is_first(201)?;
    }
    probe.ran(3).await
}

async fn other_method(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("tenant");
    refused(&probe, &call, &call.clone().method("PATCH")).await
}

async fn silent(probe: Probe) -> Result<(), Wrong> {
    const SECRET: &str = "swordfish";
    let call = probe.post("default").act("echo").body(format!("{{\"word\":\"{SECRET}\"}}"));
    probe.send(&call.respond_with("x-word: swordfish")).await?.is_first(201)?;
    let reply = probe.send(&probe.post("default")).await?;
    reply.problem(422)?;
    ensure(reply.header("retry-after").is_none(), || "it has Retry-After".into())?;
    let all = format!("{:?} {}", reply.headers, String::from_utf8_lossy(&reply.body));
    ensure(!all.contains(SECRET), || format!("it repeats what is stored: {all}"))
}

async fn stripe(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("stripe");
    let first = probe.send(&call).await?;
    first.is_first(201)?;
    let wrong = [
        call.clone().body("{\"total\":100}"),
        call.clone().path("orders?a=1"),
        call.clone().path("refunds"),
    ];
    for call in &wrong {
        let reply = probe.send(call).await?;
        reply.is(400)?;
        let document: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let kind = &document["error"]["type"];
        ensure(kind == "idempotency_error", || format!("{reply} is of type {kind}"))?;
    }
    probe.send(&call).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn again_and_again(probe: Probe) -> Result<(), Wrong> {
    probe.send(&probe.post("default")).await?.is_first(201)?;
    let wrong = probe.post("default").body("{\"total\":100}");
    let first = probe.send(&wrong).await?;
    for _ in 0..3 {
        let reply = probe.send(&wrong).await?;
        reply.problem(422)?;
        ensure(reply.body == first.body, || format!("{first}, and then {reply}"))?;
    }
    probe.ran(1).await
}

async fn ambiguous(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("canonical").body("{\"total\":1,\"total\":2}");
    probe.send(&call).await?.problem(400)?;
    probe.ran(0).await
}
