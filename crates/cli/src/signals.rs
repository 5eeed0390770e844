//! Signals that ask the program to end.

use tokio::sync::mpsc;

/// One message for every ctrl-C or SIGTERM from now on; none where the system has no signals.
#[cfg(unix)]
pub(crate) fn requests_to_end() -> mpsc::UnboundedReceiver<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (sender, receiver) = mpsc::unbounded_channel();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let (Ok(mut signals), sender) = (signal(kind), sender.clone()) else { continue };
        tokio::spawn(
            async move { while signals.recv().await.is_some() && sender.send(()).is_ok() {} },
        );
    }
    receiver
}

/// One message for every ctrl-C from now on.
#[cfg(not(unix))]
pub(crate) fn requests_to_end() -> mpsc::UnboundedReceiver<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() && sender.send(()).is_ok() {}
    });
    receiver
}
