//! G: whose key it is.

use super::probe::{Probe, ensure};
use super::{Wrong, behaviours};

behaviours! {
    86 tenants ["default"] "two tenants with one key are independent";
    87 rotated ["default"] "a tenant keeps its replays when its token changes";
    88 anonymous ["default"] "nobody gets a stored answer without saying who it is";
    89 glued ["default"] "tenant and key cannot be glued together";
    90 unnamed ["default"] "a keyed request without a tenant is refused";
    91 revoked ["guarded"] "who lost the right gets no replay";
}

async fn tenants(probe: Probe) -> Result<(), Wrong> {
    let acme = probe.post("default");
    let globex = acme.clone().instead("conform-tenant", "globex");
    let [first, other] = [probe.send(&acme).await?, probe.send(&globex).await?];
    first.is_first(201)?;
    other.is_first(201)?;
    probe.send(&acme).await?.repeats(&first)?;
    probe.send(&globex).await?.repeats(&other)?;
    probe.ran(2).await
}

async fn rotated(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("default");
    let first = probe.send(&call.clone().header("authorization", "Bearer one")).await?;
    first.is_first(201)?;
    probe.send(&call.header("authorization", "Bearer two")).await?.repeats(&first)?;
    probe.ran(1).await
}

async fn anonymous(probe: Probe) -> Result<(), Wrong> {
    probe.send(&probe.post("default")).await?.is_first(201)?;
    let reply = probe.send(&probe.post("default").without("conform-tenant")).await?;
    ensure(!reply.is_replayed(), || format!("{reply} was replayed to nobody"))?;
    ensure((400..500).contains(&reply.status), || format!("{reply} where 4xx is right"))
}

async fn glued(probe: Probe) -> Result<(), Wrong> {
    let key = probe.key.clone();
    for (tenant, key) in [("a", format!("b:{key}")), ("a:b", key)] {
        let call = probe.post("default").instead("conform-tenant", tenant).key(key.as_bytes());
        probe.send(&call).await?.is_first(201)?;
    }
    probe.ran(2).await
}

async fn unnamed(probe: Probe) -> Result<(), Wrong> {
    for call in [
        probe.post("default").without("conform-tenant"),
        probe.post("default").instead("conform-tenant", ""),
    ] {
        let reply = probe.send(&call).await?;
        ensure((400..500).contains(&reply.status), || format!("{reply} where 4xx is right"))?;
    }
    probe.ran(0).await
}

async fn revoked(probe: Probe) -> Result<(), Wrong> {
    let call = probe.post("guarded");
    let first = probe.send(&call.clone().header("authorization", "allowed")).await?;
    first.is_first(201)?;
    let reply = probe.send(&call.header("authorization", "revoked")).await?;
    ensure(!reply.is_replayed(), || format!("{reply} was replayed"))?;
    ensure(matches!(reply.status, 401 | 403), || format!("{reply} where 403 is right"))?;
    probe.ran(1).await
}
