//! Signals that ask the program to end.

use tokio::sync::mpsc;

/// One message for every ctrl-C or SIGTERM from now on.
pub(crate) fn requests_to_end() -> mpsc::UnboundedReceiver<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move { while next().await && sender.send(()).is_ok() {} });
    receiver
}

/// Waits for the next signal; false when the system cannot deliver any.
#[cfg(unix)]
async fn next() -> bool {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return false;
    };
    tokio::select! {
        heard = interrupt.recv() => heard.is_some(),
        heard = terminate.recv() => heard.is_some(),
    }
}

#[cfg(not(unix))]
async fn next() -> bool {
    tokio::signal::ctrl_c().await.is_ok()
}
