//! What every [`Sink`] must do.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use semel_core::{Event, Failure, Fault, Message, Payload, Published, Sink, Topic, Verdict};
use tokio::time::timeout;

use crate::probe::{Probe, Ran, Skip};
use crate::proxy::Proxy;
use crate::workload::{assert_intact, at_once, awkward_events, event, events, eventually, number};

/// How the suite gets at a sink and at what arrived behind it.
pub trait SinkProbe: Probe {
    /// The sink.
    type Sink: Sink + 'static;

    /// How many events of each lane the larger scenarios send: fewer only where the server takes more
    /// time for each the more it has. At least 5.
    const MANY: u64 = 50;

    /// Whether JSON arrives with the same bytes, or only with the same meaning.
    const KEEPS_JSON: bool = true;

    /// The sink.
    fn sink(&self) -> &Self::Sink;

    /// Where messages go, for this instance alone.
    fn topic(&self) -> Topic {
        Topic::from("orders")
    }

    /// Everything that arrived so far, in its order, as events again.
    ///
    /// # Errors
    /// Why it cannot be read back.
    fn arrived(&self) -> impl Future<Output = Result<Vec<Event>, Skip>> + Send;

    /// This event as a message that is refused for good: too large, say, or to nowhere.
    ///
    /// # Errors
    /// Why nothing is refused.
    fn refused(&self, event: Event) -> Result<Message, Skip> {
        let _ = event;
        Err(Skip::because("the probe knows nothing that it refuses"))
    }

    /// The proxy through which the sink reaches its receiver.
    fn proxy(&self) -> Option<&Proxy> {
        None
    }

    /// By how much answers are late where the receiver is slow: well below what the sink waits for.
    const SLOW: Duration = Duration::from_millis(250);

    /// Makes the receiver unreachable.
    ///
    /// # Errors
    /// Why that cannot be done.
    fn interrupt(&self) -> impl Future<Output = Ran> + Send {
        std::future::ready(behind_proxy(self).map(|proxy| {
            proxy.refuse(true);
            proxy.cut();
        }))
    }

    /// Makes the receiver reachable again.
    fn restore(&self) -> impl Future<Output = ()> + Send {
        if let Some(proxy) = self.proxy() {
            proxy.refuse(false);
        }
        std::future::ready(())
    }
}

/// One test per scenario of the [`Sink`](semel_core::Sink) contract, for a
/// [`SinkProbe`](crate::suites::sink::SinkProbe).
#[macro_export]
macro_rules! sink_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { sink, $probe,
            a_reachable_sink_is_ready
            an_empty_batch_is_confirmed
            a_batch_arrives_in_order
            a_large_batch_arrives_in_order
            messages_arrive_intact
            a_header_cannot_break_out
            the_same_event_may_come_twice
            concurrent_lanes_all_arrive
            a_refusal_holds_back_the_rest_of_its_lane_alone
            a_lane_goes_on_after_a_refusal
            an_outage_is_unavailable_and_passes
            a_slow_receiver_is_waited_for
            a_dropped_publish_leaves_the_sink_usable
        }
    };
}

/// `check` says whether a publish could succeed now.
pub async fn a_reachable_sink_is_ready<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    for _ in 0..2 {
        probe.sink().check().await.expect("ready");
    }
    Ok(())
}

/// Nothing to send is nothing to fail.
pub async fn an_empty_batch_is_confirmed<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    assert!(probe.sink().publish(&[]).await.all_confirmed());
    Ok(())
}

/// Messages of one lane take effect in the order of the batch, and batch after batch.
pub async fn a_batch_arrives_in_order<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    for numbers in [0..1, 1..8, 8..10] {
        let both = numbers.flat_map(|number| [event("a", number), event("b", number)]);
        publish_all(&**probe, both).await;
    }
    let expected = (0..10).collect::<Vec<_>>();
    expect_arrived(&**probe, &[("a", &expected), ("b", &expected)]).await
}

/// Many messages of each of twenty lanes in one batch: a thousand, unless the probe wants fewer.
pub async fn a_large_batch_arrives_in_order<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let names: Vec<_> = (0..20).map(|lane| format!("lane-{lane}")).collect();
    let batch = (0..P::MANY).flat_map(|number| names.iter().map(move |lane| event(lane, number)));
    publish_all(&**probe, batch).await;
    let expected = (0..P::MANY).collect::<Vec<_>>();
    let lanes: Vec<_> = names.iter().map(|lane| (lane.as_str(), expected.as_slice())).collect();
    expect_arrived(&**probe, &lanes).await
}

/// Id, names, payload and headers arrive as they were sent.
pub async fn messages_arrive_intact<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let sent = awkward_events();
    publish_all(&**probe, sent.iter().cloned()).await;
    let arrived = arrived_at_least(&**probe, sent.len()).await?;
    assert_eq!(arrived.len(), sent.len());
    for (sent, arrived) in sent.iter().zip(&arrived) {
        if P::KEEPS_JSON || sent.payload.content_type() != Payload::JSON {
            assert_intact(sent, arrived);
        } else {
            assert_intact(&with_plain_json(sent), &with_plain_json(arrived));
        }
    }
    Ok(())
}

/// The event with its JSON written in one way: 1.50 as 1.5, keys sorted, no spaces.
fn with_plain_json(event: &Event) -> Event {
    let json: serde_json::Value =
        serde_json::from_slice(event.payload.bytes()).expect("the payload is JSON");
    event.clone().with_bytes(Payload::JSON, json.to_string())
}

/// A header that could end its line is refused, or arrives as it is; it never becomes another one.
pub async fn a_header_cannot_break_out<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let sent = event("a", 1).with_header("note", "one\r\nevil: two\n\nthree\0");
    let message = Message::first(probe.topic(), sent.clone());
    match verdicts(probe.sink().publish(&[message]).await, 1).remove(0) {
        Verdict::Confirmed => assert_intact(&sent, &arrived_at_least(&**probe, 1).await?[0]),
        Verdict::Failed(failure) => assert_eq!(failure.fault(), Fault::Refused, "{failure:?}"),
        other => panic!("{other:?} of the only message"),
    }
    publish_all(&**probe, [event("b", 2)]).await;
    Ok(())
}

/// The same event may come again, with the same id: it is confirmed, and arrives once or twice.
pub async fn the_same_event_may_come_twice<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let (twice, after) = (event("a", 1), event("a", 2));
    publish_all(&**probe, [twice.clone()]).await;
    publish_all(&**probe, [twice.clone()]).await;
    publish_all(&**probe, [after.clone()]).await;
    let arrived = arrived_when(&**probe, |got| got.iter().any(|got| got.id == after.id)).await?;
    let ids: Vec<_> = arrived.iter().map(|event| event.id).collect();
    assert!(ids == [twice.id, after.id] || ids == [twice.id, twice.id, after.id], "{ids:?}");
    Ok(())
}

/// `publish` is called many times at once, with different lanes.
pub async fn concurrent_lanes_all_arrive<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let names: Vec<_> = (0..16).map(|lane| format!("lane-{lane}")).collect();
    let part = P::MANY / 5;
    at_once(names.iter().cloned().map(|lane| {
        let probe = Arc::clone(probe);
        async move {
            for start in [0, part, 2 * part] {
                publish_all(&*probe, events(&lane, start..start + part)).await;
            }
        }
        .boxed()
    }))
    .await;
    let expected = (0..3 * part).collect::<Vec<_>>();
    let lanes: Vec<_> = names.iter().map(|lane| (lane.as_str(), expected.as_slice())).collect();
    expect_arrived(&**probe, &lanes).await
}

/// After a failure the rest of that lane is not sent, and other lanes go on; wherever in the batch.
pub async fn a_refusal_holds_back_the_rest_of_its_lane_alone<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    probe.refused(event("a", 0))?;
    let mut expected = Vec::new();
    for refused in [2, 0, 4] {
        let (bad, good) = (format!("bad-{refused}"), format!("good-{refused}"));
        let (mut batch, mut expectations) = (Vec::new(), Vec::new());
        for number in 0..5 {
            batch.push(if number == refused {
                probe.refused(event(&bad, number))?
            } else {
                Message::first(probe.topic(), event(&bad, number))
            });
            expectations.push((&bad, number));
            batch.push(Message::first(probe.topic(), event(&good, number)));
            expectations.push((&good, number));
        }
        let verdicts = verdicts(probe.sink().publish(&batch).await, batch.len());
        for ((lane, number), verdict) in expectations.into_iter().zip(verdicts) {
            match verdict {
                _ if *lane == good || number < refused => {
                    assert_eq!(verdict, Verdict::Confirmed, "{lane} {number}");
                }
                Verdict::Failed(failure) if number == refused => {
                    assert_eq!(failure.fault(), Fault::Refused, "{failure:?}");
                }
                _ => assert!(
                    number > refused && verdict != Verdict::Confirmed,
                    "{lane} {number} is behind a refusal: {verdict:?}"
                ),
            }
        }
        expected.push((bad, (0..refused).collect::<Vec<_>>()));
        expected.push((good, (0..5).collect()));
    }
    let lanes: Vec<_> =
        expected.iter().map(|(lane, got)| (lane.as_str(), got.as_slice())).collect();
    expect_arrived(&**probe, &lanes).await
}

/// What was behind a refusal is sent by the next call.
pub async fn a_lane_goes_on_after_a_refusal<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let batch = [
        Message::first(probe.topic(), event("a", 0)),
        probe.refused(event("a", 1))?,
        Message::first(probe.topic(), event("a", 2)),
    ];
    let first = verdicts(probe.sink().publish(&batch).await, 3);
    assert_eq!(first[0], Verdict::Confirmed);
    assert_ne!(first[2], Verdict::Confirmed);
    probe.sink().check().await.expect("one bad message is no outage");
    let again = probe.sink().publish(&batch[2..]).await;
    assert!(again.all_confirmed(), "{again:?}");
    expect_arrived(&**probe, &[("a", &[0, 2])]).await
}

/// While the receiver is away everything is `Unavailable`, which counts no attempt; then it goes on.
pub async fn an_outage_is_unavailable_and_passes<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    publish_all(&**probe, [event("a", 0)]).await;
    probe.interrupt().await?;
    let batch = [event("a", 1), event("a", 2), event("b", 3)];
    let batch = batch.map(|event| Message::first(probe.topic(), event));
    let away = timeout(PATIENCE_IN_AN_OUTAGE, probe.sink().publish(&batch)).await;
    match away.expect("an answer during an outage") {
        Published::None(failure) => expect_outage(&failure),
        published => {
            for verdict in verdicts(published, 3) {
                match verdict {
                    Verdict::Failed(failure) => expect_outage(&failure),
                    verdict => assert_eq!(verdict, Verdict::Behind, "nobody can have it"),
                }
            }
        }
    }
    let ready = timeout(PATIENCE_IN_AN_OUTAGE, probe.sink().check()).await;
    expect_outage(&ready.expect("an answer during an outage").expect_err("not ready"));

    probe.restore().await;
    let ready = async || probe.sink().check().await.ok();
    eventually::<P, _>(ready).await.expect("ready again");
    let sent = async || probe.sink().publish(&batch).await.all_confirmed().then_some(());
    eventually::<P, _>(sent).await.expect("confirmed again");
    let all = |arrived: &[Event]| first_arrivals(arrived).values().flatten().count() == 4;
    let lanes = first_arrivals(&arrived_when(&**probe, all).await?);
    assert_eq!(lanes, BTreeMap::from([("a".into(), vec![0, 1, 2]), ("b".into(), vec![3])]));
    Ok(())
}

/// Answers that come late are waited for: no failure, no repetition, and order holds.
pub async fn a_slow_receiver_is_waited_for<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    publish_all(&**probe, [event("a", 0)]).await;
    behind_proxy(&**probe)?.delay_replies(P::SLOW);
    let began = Instant::now();
    publish_all(&**probe, [event("a", 1), event("b", 2), event("a", 3)]).await;
    assert!(began.elapsed() >= P::SLOW, "confirmed before the answer came");
    probe.sink().check().await.expect("slow is not away");
    behind_proxy(&**probe)?.delay_replies(Duration::ZERO);
    publish_all(&**probe, [event("a", 4)]).await;
    expect_arrived(&**probe, &[("a", &[0, 1, 3, 4]), ("b", &[2])]).await
}

/// A `publish` that is dropped half-way has an unknown outcome; the next one works.
pub async fn a_dropped_publish_leaves_the_sink_usable<P: SinkProbe>(probe: &Arc<P>) -> Ran {
    let batch: Vec<_> =
        (0..P::MANY).flat_map(|number| [event("a", number), event("b", number)]).collect();
    let messages: Vec<_> =
        batch.iter().map(|event| Message::first(probe.topic(), event.clone())).collect();
    for micros in [0, 100, 1_000] {
        let wait = Duration::from_micros(micros);
        drop(timeout(wait, probe.sink().publish(&messages)).await);
    }
    publish_all(&**probe, batch).await;
    let all = |arrived: &[Event]| {
        first_arrivals(arrived).values().map(|lane| lane.len() as u64).sum::<u64>() == 2 * P::MANY
    };
    let lanes = first_arrivals(&arrived_when(&**probe, all).await?);
    for lane in lanes.values() {
        assert_eq!(*lane, (0..P::MANY).collect::<Vec<_>>(), "first arrivals are in order");
    }
    Ok(())
}

fn behind_proxy<P: SinkProbe>(probe: &P) -> Result<&Proxy, Skip> {
    probe.proxy().ok_or_else(|| Skip::because("the probe has no proxy before it"))
}

const PATIENCE_IN_AN_OUTAGE: Duration = Duration::from_secs(60);

async fn publish_all<P: SinkProbe>(probe: &P, events: impl IntoIterator<Item = Event>) {
    let messages: Vec<_> =
        events.into_iter().map(|event| Message::first(probe.topic(), event)).collect();
    let published = probe.sink().publish(&messages).await;
    assert!(published.all_confirmed(), "{published:?}");
}

/// One verdict per message.
fn verdicts(published: Published, count: usize) -> Vec<Verdict> {
    match published {
        Published::All => vec![Verdict::Confirmed; count],
        Published::Each(verdicts) => {
            assert_eq!(verdicts.len(), count, "one verdict per message");
            verdicts
        }
        Published::None(failure) => panic!("the whole call failed: {failure:?}"),
    }
}

fn expect_outage(failure: &Failure) {
    assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
}

/// Everything that arrived, once that is `count` at least.
async fn arrived_at_least<P: SinkProbe>(probe: &P, count: usize) -> Result<Vec<Event>, Skip> {
    arrived_when(probe, |arrived| arrived.len() >= count).await
}

/// Everything that arrived, once it is complete, or patience ends.
async fn arrived_when<P: SinkProbe>(
    probe: &P,
    complete: impl Fn(&[Event]) -> bool,
) -> Result<Vec<Event>, Skip> {
    let mut latest = Ok(Vec::new());
    eventually::<P, _>(async || {
        latest = probe.arrived().await;
        latest.as_ref().map_or(true, |arrived| complete(arrived)).then_some(())
    })
    .await;
    latest
}

/// Checks that exactly these numbers arrived in these lanes, in this order.
async fn expect_arrived<P: SinkProbe>(probe: &P, lanes: &[(&str, &[u64])]) -> Ran {
    let count = lanes.iter().map(|(_, numbers)| numbers.len()).sum();
    arrived_at_least(probe, count).await?;
    tokio::time::sleep(P::QUIET).await;
    let mut got: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in probe.arrived().await? {
        got.entry(event.aggregate_id.clone()).or_default().push(number(&event));
    }
    let expected = lanes.iter().filter(|(_, numbers)| !numbers.is_empty());
    let expected = expected.map(|(lane, numbers)| ((*lane).to_owned(), numbers.to_vec()));
    assert_eq!(got, expected.collect());
    Ok(())
}

/// The numbers of each lane in the order in which they arrived first.
fn first_arrivals(events: &[Event]) -> BTreeMap<String, Vec<u64>> {
    let mut lanes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in events {
        let number = number(event);
        let lane = lanes.entry(event.aggregate_id.clone()).or_default();
        if !lane.contains(&number) {
            lane.push(number);
        }
    }
    lanes
}
