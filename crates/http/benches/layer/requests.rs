//! The requests that are measured, in batches on one thread.

#![expect(clippy::unwrap_used, reason = "a program that prints figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use semel_core::memory::MemoryKeys;
use semel_http::{Body, IdempotencyLayer, Policy, Scope};
use tower::{Layer, Service, ServiceExt};

/// What is measured of a batch.
pub(crate) trait Meter {
    type Mark;
    fn begin() -> Self::Mark;
    fn end(begun: Self::Mark) -> f64;
    /// One figure of all batches.
    fn of_all(batches: Vec<f64>) -> f64;
}

/// Figures of one request each.
pub(crate) struct Measured {
    pub(crate) bare: f64,
    pub(crate) first: f64,
    pub(crate) passed: f64,
    pub(crate) replayed: f64,
}

// Short, so that most of them are not interrupted on a busy machine.
const BATCHES: usize = 5000;
const BATCH: usize = 20;

/// One thread, so that figures are those of one core.
pub(crate) fn measure<M: Meter>() -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let handler = tower::service_fn(|_: Request<Body<Full<Bytes>>>| async {
            Ok::<_, Infallible>(Response::new(Full::from("{\"order\":1}")))
        });
        let bare = tower::service_fn(move |request: Request<Full<Bytes>>| {
            handler.oneshot(request.map(Body::from))
        });
        let policy = Policy::ietf(Scope::authorization());
        let store = Arc::new(MemoryKeys::new().max_bytes(usize::MAX));
        let keyed = IdempotencyLayer::new(store, policy).layer(handler);
        Measured {
            bare: batches::<M, _, _>(bare, |number| request(Some(number))).await,
            first: batches::<M, _, _>(keyed.clone(), |number| request(Some(number))).await,
            passed: batches::<M, _, _>(keyed.clone(), |_| request(None)).await,
            replayed: batches::<M, _, _>(keyed, |_| request(Some(0))).await,
        }
    })
}

fn request(number: Option<usize>) -> Request<Full<Bytes>> {
    let mut request = Request::post("/orders").header("authorization", "acme");
    if let Some(number) = number {
        request = request.header("idempotency-key", format!("{number:036}"));
    }
    request.body(Full::from("{\"total\":99}")).unwrap()
}

/// Requests are made beforehand, and dropped with their answers inside of what is measured.
async fn batches<M, S, R>(service: S, request: impl Fn(usize) -> Request<Full<Bytes>>) -> f64
where
    M: Meter,
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error = Infallible> + Clone,
{
    let mut measured = Vec::new();
    for batch in 0..BATCHES {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        let requests: Vec<_> = numbers.map(&request).collect();
        let begun = M::begin();
        for request in requests {
            let answer = service.clone().oneshot(request).await;
            drop(std::hint::black_box(answer));
        }
        measured.push(M::end(begun));
    }
    M::of_all(measured) / BATCH as f64
}
