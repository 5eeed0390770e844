//! What the layer adds to a handler, with keys in memory: time and allocations of a first request,
//! and how many replays one core gives in a second.
//!
//! `./dev bench keys`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints figures")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::alloc::System;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use semel_core::memory::MemoryKeys;
use semel_http::{Body, IdempotencyLayer, Policy, Scope};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{Layer, Service, ServiceExt};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const BATCHES: usize = 200;
const BATCH: usize = 500;

fn main() {
    // One thread, so that figures are those of one core.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let handler = tower::service_fn(|_: Request<Body<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::from("{\"order\":1}")))
    });
    let bare = tower::service_fn(move |request: Request<Full<Bytes>>| {
        handler.oneshot(request.map(Body::from))
    });
    let policy = Policy::ietf(Scope::authorization());
    let store = Arc::new(MemoryKeys::new().max_bytes(usize::MAX));
    let keyed = IdempotencyLayer::new(store, policy).layer(handler);

    let mut bare_figures = figures(bare, |number| request(Some(number))).await;
    let mut keyed_figures = figures(keyed.clone(), |number| request(Some(number))).await;
    let mut passed = figures(keyed.clone(), |_| request(None)).await;
    let replayed = figures(keyed, |_| request(Some(0))).await;
    for figures in [&mut keyed_figures, &mut passed] {
        figures.nanoseconds -= bare_figures.nanoseconds;
        figures.allocations -= bare_figures.allocations;
    }
    bare_figures.print("bare handler");
    keyed_figures.print("the layer adds to a first request");
    passed.print("the layer adds to a request without a key");
    replayed.print("a replay, with its request");
    println!("replays of one core: {:.0}/s", 1e9 / replayed.nanoseconds);
}

fn request(number: Option<usize>) -> Request<Full<Bytes>> {
    let mut request = Request::post("/orders").header("authorization", "acme");
    if let Some(number) = number {
        request = request.header("idempotency-key", format!("{number:036}"));
    }
    request.body(Full::from("{\"total\":99}")).unwrap()
}

/// Per request: the median over batches, and the mean.
struct Figures {
    nanoseconds: f64,
    allocations: f64,
}

impl Figures {
    fn print(&self, what: &str) {
        let Self { nanoseconds, allocations } = self;
        println!("{what}: {:.2} µs, {allocations:.1} allocations", nanoseconds / 1000.0);
    }
}

/// Requests are made beforehand, and dropped with their answers inside of the time.
async fn figures<S, R>(service: S, request: impl Fn(usize) -> Request<Full<Bytes>>) -> Figures
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>, Error = Infallible> + Clone,
{
    let (mut times, mut allocations) = (Vec::new(), 0);
    for batch in 0..BATCHES {
        let numbers = batch * BATCH..(batch + 1) * BATCH;
        let requests: Vec<_> = numbers.map(&request).collect();
        let (region, started) = (Region::new(ALLOCATOR), Instant::now());
        for request in requests {
            let answer = service.clone().oneshot(request).await;
            drop(std::hint::black_box(answer));
        }
        times.push(started.elapsed().as_nanos() as f64 / BATCH as f64);
        allocations += region.change().allocations;
    }
    times.sort_by(f64::total_cmp);
    let allocations = allocations as f64 / (BATCHES * BATCH) as f64;
    Figures { nanoseconds: times[BATCHES / 2], allocations }
}
