//! `Idempotent::run` without HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::idempotency::{
    AfterCrash, Claim, Fingerprint, IdempotencyStore, Record, Rules, ScopedKey,
};
use semel_core::memory::MemoryKeys;
use semel_http::{Idempotent, Ran, RunError};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::support::{Flaky, TokioClock};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    id: u64,
    lines: Vec<String>,
}

fn key() -> ScopedKey {
    ScopedKey::new(&["acme", "charge", "k"])
}

fn print() -> Fingerprint {
    Fingerprint::new(&[b"99"])
}

fn store() -> Arc<MemoryKeys> {
    Arc::new(MemoryKeys::with_clock(TokioClock::shared()))
}

type Outcome<T> = Result<Ran<T>, RunError<String>>;

#[tokio::test(start_paused = true)]
async fn typed_results_come_back_and_the_operation_runs_once() {
    let once = Idempotent::new(store());
    let receipt = Receipt { id: 7, lines: vec!["a".into(), "b".into()] };
    let runs = Arc::new(AtomicUsize::new(0));
    for replayed in [false, true, true] {
        let (receipt, runs) = (receipt.clone(), Arc::clone(&runs));
        let ran: Outcome<Receipt> = once
            .run(key(), print(), |_| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok(receipt)
            })
            .await;
        assert_eq!(
            ran,
            Ok(Ran { value: Receipt { id: 7, lines: vec!["a".into(), "b".into()] }, replayed })
        );
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_releases_the_key_or_is_kept() {
    let releasing = Idempotent::new(store());
    let failed: Outcome<u8> =
        releasing.run(key(), print(), |_| async { Err("no".to_owned()) }).await;
    assert_eq!(failed, Err(RunError::Operation("no".to_owned())));
    let ran: Outcome<u8> = releasing.run(key(), print(), |_| async { Ok(1) }).await;
    assert_eq!(ran, Ok(Ran { value: 1, replayed: false }));

    let keeping = Idempotent::new(store());
    for _ in 0..2 {
        let failed: Outcome<u8> = keeping
            .run_keeping_failures(key(), print(), |attempt| async move {
                Err(format!("no {}", attempt.token().0))
            })
            .await;
        assert_eq!(failed, Err(RunError::Operation("no 1".to_owned())));
    }
    let not_a_success: Outcome<u8> = keeping.run(key(), print(), |_| async { Ok(1) }).await;
    assert_eq!(not_a_success, Err(RunError::NotRetained));
}

#[tokio::test(start_paused = true)]
async fn another_fingerprint_is_a_mismatch() {
    let once = Idempotent::new(store());
    let _: Outcome<u8> = once.run(key(), print(), |_| async { Ok(1) }).await;
    let other = Fingerprint::new(&[b"100"]);
    let refused: Outcome<u8> = once.run(key(), other, |_| async { Ok(2) }).await;
    assert_eq!(refused, Err(RunError::Mismatch));
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_read_is_not_retained_and_nothing_runs_again() {
    let once = Idempotent::new(store());
    let _: Outcome<String> = once.run(key(), print(), |_| async { Ok("text".to_owned()) }).await;
    let as_number: Outcome<u64> = once.run(key(), print(), |_| async { panic!("runs") }).await;
    assert_eq!(as_number, Err(RunError::NotRetained));

    let store = store();
    let (second, lease) = (ScopedKey::new(&["later release"]), Duration::from_secs(1));
    let Claim::Fresh { token, .. } = store.claim(&second, &print(), lease).await.unwrap() else {
        panic!("not fresh")
    };
    let record = Record { version: 77, body: "from the future".into() };
    assert!(store.complete(&second, token, record, lease).await.unwrap().is_held());
    let ran: Outcome<u64> = Idempotent::new(store).run(second, print(), |_| async { Ok(1) }).await;
    assert_eq!(ran, Err(RunError::NotRetained));
}

#[tokio::test(start_paused = true)]
async fn a_second_caller_waits_or_is_refused() {
    let patient = Idempotent::new(store());
    let hasty = patient.with_rules(Rules { wait: Duration::ZERO, ..Rules::default() });
    let first = tokio::spawn({
        let once = patient.clone();
        async move {
            let ran: Outcome<u8> = once
                .run(key(), print(), |_| async {
                    sleep(Duration::from_millis(500)).await;
                    Ok(1)
                })
                .await;
            ran
        }
    });
    sleep(Duration::from_millis(1)).await;
    let refused: Outcome<u8> = hasty.run(key(), print(), |_| async { Ok(2) }).await;
    assert_eq!(refused, Err(RunError::InProgress));
    let waited: Outcome<u8> = patient.run(key(), print(), |_| async { Ok(3) }).await;
    assert_eq!(waited, Ok(Ran { value: 1, replayed: true }));
    assert_eq!(first.await.unwrap(), Ok(Ran { value: 1, replayed: false }));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_does_not_stop_the_operation() {
    let once = Idempotent::new(store());
    let run = once.run(key(), print(), |_| async {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, String>(1)
    });
    assert!(tokio::time::timeout(Duration::from_secs(1), run).await.is_err());
    once.drained().await;
    let again: Outcome<u8> = once.run(key(), print(), |_| async { panic!("runs") }).await;
    assert_eq!(again, Ok(Ran { value: 1, replayed: true }));
}

#[tokio::test(start_paused = true)]
async fn a_panic_releases_or_condemns() {
    let once = Idempotent::new(store());
    let panicked: Outcome<u8> = once.run(key(), print(), |_| async { panic!("on purpose") }).await;
    assert_eq!(panicked, Err(RunError::Panicked));
    let again: Outcome<u8> = once.run(key(), print(), |_| async { Ok(1) }).await;
    assert_eq!(again, Ok(Ran { value: 1, replayed: false }));

    let careful = Idempotent::new(store())
        .with_rules(Rules { after_crash: AfterCrash::Uncertain, ..Rules::default() });
    let _: Outcome<u8> = careful.run(key(), print(), |_| async { panic!("on purpose") }).await;
    let again: Outcome<u8> = careful.run(key(), print(), |_| async { Ok(1) }).await;
    assert_eq!(again, Err(RunError::Uncertain));
}

#[tokio::test(start_paused = true)]
async fn attempts_and_tokens_grow_and_a_lost_lease_is_noticed() {
    let store = store();
    // Somebody claimed the key and died.
    let lease = Duration::from_secs(30);
    let Claim::Fresh { token: dead, .. } = store.claim(&key(), &print(), lease).await.unwrap()
    else {
        panic!("not fresh")
    };
    sleep(lease).await;
    let once = Idempotent::new(store.clone());
    let ran: Outcome<(u32, bool, bool)> = once
        .run(key(), print(), move |attempt| async move {
            assert!(attempt.token() > dead);
            let before = attempt.is_held();
            // Somebody meddles with the record; the next renewal finds out.
            let gone = store.release(attempt.key(), attempt.token()).await.unwrap();
            assert!(gone.is_held());
            sleep(lease).await;
            Ok((attempt.number(), before, attempt.is_held()))
        })
        .await;
    assert_eq!(ran.unwrap().value, (2, true, false));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_an_error_and_nothing_runs() {
    let store = Arc::new(Flaky::new());
    store.down.store(true, Ordering::SeqCst);
    let ran: Outcome<u8> =
        Idempotent::new(store).run(key(), print(), |_| async { panic!("runs") }).await;
    assert!(matches!(ran, Err(RunError::Store(failure)) if failure.code() == "E-TEST"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_concurrent_callers_one_runs() {
    let once = Idempotent::new(Arc::new(MemoryKeys::new()));
    let runs = Arc::new(AtomicUsize::new(0));
    let callers: tokio::task::JoinSet<Outcome<u8>> = (0..64)
        .map(|_| {
            let (once, runs) = (once.clone(), Arc::clone(&runs));
            async move {
                once.run(key(), print(), |_| async move {
                    runs.fetch_add(1, Ordering::SeqCst);
                    Ok(9)
                })
                .await
            }
        })
        .collect();
    let results = callers.join_all().await;
    assert!(results.iter().all(|ran| ran.as_ref().unwrap().value == 9));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
