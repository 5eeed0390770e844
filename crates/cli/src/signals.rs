//! Signals that ask the program to end, or to read its configuration again.

use tokio::sync::mpsc;

/// One message for every ctrl-C or SIGTERM from now on; none where the system has no signals.
#[cfg(unix)]
pub(crate) fn requests_to_end() -> mpsc::UnboundedReceiver<()> {
    use tokio::signal::unix::SignalKind;
    requests(&[SignalKind::interrupt(), SignalKind::terminate()])
}

/// One message for every SIGHUP from now on.
#[cfg(unix)]
pub(crate) fn requests_to_reload() -> mpsc::UnboundedReceiver<()> {
    requests(&[tokio::signal::unix::SignalKind::hangup()])
}

#[cfg(unix)]
fn requests(kinds: &[tokio::signal::unix::SignalKind]) -> mpsc::UnboundedReceiver<()> {
    use tokio::signal::unix::signal;
    let (sender, receiver) = mpsc::unbounded_channel();
    for kind in kinds.iter().copied() {
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

/// Nobody asks where the system has no such signal.
#[cfg(not(unix))]
pub(crate) fn requests_to_reload() -> mpsc::UnboundedReceiver<()> {
    mpsc::unbounded_channel().1
}
