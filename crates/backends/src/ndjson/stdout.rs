//! Standard output as a sink.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use semel_core::{Failure, Message, Published, Sink};

use super::line::lines;
use super::outlet::Outlet;

/// Writes to standard output. A line counts as delivered once it is handed to whoever reads there.
/// While a reader takes nothing, for longer than the call waited that wrote to it, it counts as away.
///
/// ```no_run
/// use semel_backends::ndjson::StdoutSink;
/// use semel_core::{Event, Message, Sink};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert!(StdoutSink.publish(&[message]).await.all_confirmed());
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StdoutSink;

#[async_trait]
impl Sink for StdoutSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        publish_by(&STDOUT, batch, |lines| write(&mut io::stdout().lock(), lines)).await
    }

    async fn check(&self) -> Result<(), Failure> {
        check(&STDOUT)
    }

    fn system(&self) -> Option<&'static str> {
        Some("stdout")
    }
}

/// A process has one.
static STDOUT: LazyLock<Arc<Outlet>> = LazyLock::new(Arc::default);

async fn publish_by(
    outlet: &Arc<Outlet>,
    batch: &[Message],
    write: impl FnOnce(&[u8]) -> io::Result<()> + Send + 'static,
) -> Published {
    let written = match lines(batch) {
        Ok(lines) => outlet.write(lines, write).await,
        Err(error) => Err(error.into()),
    };
    match written {
        Ok(()) => Published::All,
        Err(error) => Published::None(failure(error)),
    }
}

fn check(outlet: &Outlet) -> Result<(), Failure> {
    if outlet.is_blocked() {
        let what = "whoever reads standard output takes nothing at present";
        return Err(Failure::unavailable("E-STDOUT-BLOCKED", what)
            .with_fix("let the reader go on, or end it; events wait meanwhile"));
    }
    Ok(())
}

fn write(out: &mut impl Write, lines: &[u8]) -> io::Result<()> {
    out.write_all(lines)?;
    out.flush()
}

fn failure(error: io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe {
        return Failure::misconfigured("E-STDOUT-CLOSED", "nobody reads standard output any more")
            .with_source(error)
            .with_fix("start the reader again, then the relay: it goes on where it stopped");
    }
    Failure::unavailable("E-STDOUT-WRITE", "cannot write to standard output").with_source(error)
}

#[cfg(test)]
#[path = "../../tests/ndjson/line.rs"]
mod read;

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, LineWriter, PipeReader, PipeWriter, pipe};
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;

    use semel_core::memory::MemoryDatabase;
    use semel_core::{Event, Fault, OutboxWriter, Schedule};
    use semel_relay::{Relay, Settings, Stop};
    use semel_testkit::probe::{Probe, Ran, Skip};
    use semel_testkit::sink_suite;
    use semel_testkit::suites::sink::SinkProbe;
    use semel_testkit::workload::{event, events, numbers};
    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Standard output belongs to the whole process, so a pipe stands in for it; it is buffered by
    /// lines as that is.
    struct Piped {
        out: Arc<Mutex<LineWriter<PipeWriter>>>,
        outlet: Arc<Outlet>,
    }

    #[async_trait]
    impl Sink for Piped {
        async fn publish(&self, batch: &[Message]) -> Published {
            let out = Arc::clone(&self.out);
            let write = move |lines: &[u8]| write(&mut *out.lock().unwrap(), lines);
            publish_by(&self.outlet, batch, write).await
        }

        async fn check(&self) -> Result<(), Failure> {
            check(&self.outlet)
        }
    }

    fn piped() -> (Piped, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        let out = Arc::new(Mutex::new(LineWriter::new(writer)));
        (Piped { out, outlet: Arc::default() }, reader)
    }

    struct Reader {
        sink: Piped,
        arrived: Arc<Mutex<Vec<String>>>,
    }

    impl Probe for Reader {
        const BACKEND: &'static str = "stdout";
        const QUIET: Duration = Duration::from_millis(20);

        async fn fresh() -> Option<Self> {
            let (sink, reader) = piped();
            let arrived = Arc::<Mutex<Vec<String>>>::default();
            let lines = Arc::clone(&arrived);
            thread::spawn(move || {
                for line in BufReader::new(reader).lines() {
                    lines.lock().unwrap().push(line.unwrap());
                }
            });
            Some(Self { sink, arrived })
        }
    }

    impl SinkProbe for Reader {
        type Sink = Piped;

        fn sink(&self) -> &Piped {
            &self.sink
        }

        async fn arrived(&self) -> Result<Vec<Event>, Skip> {
            Ok(self.arrived.lock().unwrap().iter().map(|line| read::event(line)).collect())
        }

        async fn interrupt(&self) -> Ran {
            Err(Skip::because("a reader that is gone does not come back"))
        }
    }

    sink_suite!(Reader);

    fn messages(events: impl IntoIterator<Item = Event>) -> Vec<Message> {
        events.into_iter().map(|event| Message::first("order.events", event)).collect()
    }

    #[tokio::test]
    async fn a_slow_reader_is_waited_for() {
        let (sink, reader) = piped();
        let more_than_a_pipe_holds = messages(events("a", 0..10_000));
        let mut publishing =
            tokio::spawn(async move { sink.publish(&more_than_a_pipe_holds).await });
        let early = timeout(Duration::from_millis(100), &mut publishing).await;
        assert!(early.is_err(), "confirmed before anybody read it: {early:?}");
        let lines = thread::spawn(move || BufReader::new(reader).lines().collect::<Vec<_>>());
        assert!(publishing.await.unwrap().all_confirmed());
        let lines = lines.join().unwrap();
        let arrived: Vec<_> =
            lines.iter().map(|line| read::event(line.as_ref().unwrap())).collect();
        assert_eq!(numbers(&arrived), (0..10_000).collect::<Vec<_>>());
    }

    /// `semel relay | less`: nobody scrolls for many times as long as a publish call may take.
    #[tokio::test]
    async fn a_reader_that_pauses_costs_no_attempt_and_gets_each_line_once() {
        const EVENTS: u64 = 3_000;
        let (sink, reader) = piped();
        let outlet = Arc::clone(&sink.outlet);
        let database = MemoryDatabase::new();
        let mut tx = database.begin().await;
        let lanes: Vec<_> = (0..EVENTS).map(|n| event(&format!("lane-{}", n % 7), n)).collect();
        database.append(&mut tx, &lanes).await.unwrap();
        tx.commit();
        let settings = Settings {
            publish_timeout: Duration::from_millis(50),
            schedule: Schedule::new(vec![Duration::ZERO, Duration::from_millis(1)]),
            ..Settings::default()
        };
        let relay = Relay::new("orders", database.source(), sink).with_settings(settings);
        let running = tokio::spawn(relay.drain(Stop::never()));
        let paused = timeout(PATIENCE, async {
            while !outlet.is_blocked() {
                sleep(Duration::from_millis(5)).await;
            }
        });
        paused.await.expect("the pipe is full");
        // As many attempts as the schedule has would be over long before.
        sleep(Duration::from_secs(1)).await;
        let lines = thread::spawn(move || BufReader::new(reader).lines().collect::<Vec<_>>());
        let report = timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
        assert_eq!((report.published, report.dead), (EVENTS, 0));
        let lines = lines.join().unwrap();
        let arrived: Vec<_> =
            lines.iter().map(|line| read::event(line.as_ref().unwrap())).collect();
        for lane in 0..7 {
            let lane = format!("lane-{lane}");
            let of_lane = numbers(arrived.iter().filter(|event| event.aggregate_id == lane));
            assert!(of_lane.is_sorted(), "{lane}: {of_lane:?}");
        }
        let mut all = numbers(&arrived);
        all.sort_unstable();
        assert_eq!(all, (0..EVENTS).collect::<Vec<_>>(), "each line once");
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_ends_the_relay() {
        let (sink, reader) = piped();
        assert!(sink.publish(&messages([event("a", 1)])).await.all_confirmed());
        drop(reader);
        let Published::None(failure) = sink.publish(&messages([event("a", 2)])).await else {
            panic!("nobody reads it");
        };
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-STDOUT-CLOSED"));
    }

    #[test]
    fn a_reader_that_is_gone_is_told_from_one_that_waits() {
        let told = |kind: ErrorKind| {
            let failure = failure(kind.into());
            (failure.fault(), failure.code())
        };
        assert_eq!(told(ErrorKind::BrokenPipe), (Fault::Misconfigured, "E-STDOUT-CLOSED"));
        assert_eq!(told(ErrorKind::StorageFull), (Fault::Unavailable, "E-STDOUT-WRITE"));
    }
}
