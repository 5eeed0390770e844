//! Standard output as a sink.

use std::io::{self, ErrorKind, Write};

use async_trait::async_trait;
use semel_core::{Failure, Message, Published, Sink};
use tokio::task::spawn_blocking;

use super::line::lines;

/// Writes to standard output. A line counts as delivered once it is handed to whoever reads there.
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
        let written = match lines(batch) {
            Ok(lines) => spawn_blocking(move || write(&lines)).await.map_err(io::Error::other),
            Err(error) => Err(error.into()),
        };
        match written.flatten() {
            Ok(()) => Published::All,
            Err(error) => Published::None(failure(error)),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn system(&self) -> Option<&'static str> {
        Some("stdout")
    }
}

fn write(lines: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
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
mod tests {
    use semel_core::Fault;

    use super::*;

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
