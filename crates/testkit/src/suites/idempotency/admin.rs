//! What operators see and do.

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_core::idempotency::{Claim, Ending, KeyAdmin, KeyState, KeyView, Stored};
use semel_core::{Holding, IdempotencyStore};

use super::{IdempotencyProbe, LONG, Subject};
use crate::probe::{Ran, Skip};

fn admin<P: IdempotencyProbe>(probe: &P) -> Result<&dyn KeyAdmin, Skip> {
    probe.admin().ok_or_else(|| Skip::because("operators cannot look at it"))
}

async fn look<P: IdempotencyProbe>(subject: &Subject<'_, P>) -> Result<Option<KeyView>, Skip> {
    Ok(admin(subject.probe)?.look(&subject.key).await.expect("look"))
}

/// Every key that is not free is on one of the pages.
pub async fn keys_are_listed_page_by_page<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let admin = admin(&**probe)?;
    let mut expected = BTreeSet::new();
    for number in 0..7 {
        let subject = Subject::new(probe);
        let (token, _) = subject.fresh(LONG).await;
        match number {
            0 => assert_eq!(subject.release(token).await, Holding::Held),
            1 => assert_eq!(subject.complete(token, "paid", LONG).await, Holding::Held),
            _ => {}
        }
        if number > 0 {
            expected.insert(subject.key);
        }
    }
    let (mut seen, mut after) = (BTreeSet::new(), None);
    loop {
        let page = admin.list(after.as_deref(), 2).await.expect("list");
        seen.extend(page.keys.iter().map(|view| view.key));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(seen.is_superset(&expected), "{expected:?} are not all in {seen:?}");
    Ok(())
}

/// How many are in which state is told, and what nobody has finished, the slowest first.
pub async fn keys_are_surveyed<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let admin = admin(&**probe)?;
    let [abandoned, running, done] = [(); 3].map(|()| Subject::new(probe));
    running.fresh(LONG).await;
    let (token, _) = done.fresh(LONG).await;
    assert_eq!(done.complete(token, "\u{1}", LONG).await, Holding::Held);
    abandoned.fresh(P::TICK).await;
    probe.pass(P::TICK * 3 / 2).await;
    let survey = admin.survey(10_000).await.expect("survey");
    for state in [KeyState::Abandoned, KeyState::Running, KeyState::Done(Ending::Succeeded)] {
        assert!(survey.count(state) > 0, "{state:?}: {survey:?}");
    }
    let place = |key| survey.open.iter().position(|view| view.key == key);
    assert!(place(abandoned.key) < place(running.key), "{survey:?}");
    assert!(place(abandoned.key).is_some() && place(done.key).is_none(), "{survey:?}");
    assert!(survey.is_whole && survey.keys >= 3, "{survey:?}");
    Ok(())
}

/// State, attempt, time and size are told.
pub async fn keys_are_looked_at_without_their_results<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    assert_eq!(look(&subject).await?, None);
    subject.fresh(P::TICK).await;
    let running = look(&subject).await?.expect("it runs");
    assert_eq!((running.key, running.state), (subject.key, KeyState::Running));
    assert_eq!(running.attempt, Some(1));
    assert!(!running.remaining.is_zero() && running.remaining <= P::TICK);
    probe.pass(P::TICK * 3 / 2).await;
    assert_eq!(look(&subject).await?.expect("abandoned").state, KeyState::Abandoned);
    let (token, _) = subject.fresh(LONG).await;
    assert_eq!(look(&subject).await?.expect("it runs").attempt, Some(2));

    let record = Stored::record(Ending::Uncertain, b"nobody knows".to_vec());
    let size = record.body.len();
    let stored = probe.store().complete(&subject.key, token, record, P::TICK).await;
    assert_eq!(stored.expect("complete"), Holding::Held);
    let done = look(&subject).await?.expect("it is done");
    assert_eq!((done.state, done.bytes), (KeyState::Done(Ending::Uncertain), size));
    assert!(!done.remaining.is_zero() && done.remaining <= P::TICK);
    probe.pass(P::TICK * 3 / 2).await;
    assert_eq!(look(&subject).await?, None, "it is expired");
    Ok(())
}

/// Whatever its state, it is as new afterwards, and an owner that still runs is fenced off.
pub async fn a_key_is_freed_by_hand<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let (subject, admin) = (Subject::new(probe), admin(&**probe)?);
    assert!(!admin.free(&subject.key).await.expect("free"), "it is free already");
    let (late, _) = subject.fresh(LONG).await;
    assert!(admin.free(&subject.key).await.expect("free"));
    subject.expect_lost(late).await;
    let Claim::Fresh { token, attempt: 1 } = subject.claim_as(b"another").await else {
        panic!("a freed key belongs to nobody");
    };
    assert!(token > late, "{token:?} follows {late:?}");
    assert_eq!(subject.complete(token, "paid", LONG).await, Holding::Held);
    assert!(admin.free(&subject.key).await.expect("free"));
    assert_eq!(look(&subject).await?, None);
    assert_eq!(subject.fresh(LONG).await.1, 1);
    Ok(())
}
