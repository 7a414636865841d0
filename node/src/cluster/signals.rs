//! Signals to a process: SIGTERM, Ctrl-C, a closed terminal.

use std::io::Read;
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use zbelastic_wording::{CommandFailure, FailureCode};

use super::process_exit::NodeSignal;
use zbelastic_policy::drain_cause::DrainCause;

/// If it is `stdin`, the process ends when its standard input does: the process that started it
/// holds the other end, and drops it however it ends.
pub const LIFELINE_VARIABLE: &str = "ZBELASTIC_LIFELINE";

/// Signals that wait at once: a key that is held down.
const SIGNALS_MAX: usize = 16;

/// Listens: SIGTERM is a machine being withdrawn, Ctrl-C an operator; a second one of either means
/// now. A closed terminal is ignored: the node keeps running.
///
/// # Errors
/// If the system refuses to deliver signals to this process.
pub fn listen() -> Result<mpsc::Receiver<NodeSignal>, CommandFailure> {
    let (sender, receiver) = mpsc::channel(SIGNALS_MAX);
    forward_signals(
        SignalKind::terminate(),
        Some(NodeSignal::Drain(DrainCause::Preempted)),
        &sender,
    )?;
    forward_signals(SignalKind::interrupt(), Some(NodeSignal::Drain(DrainCause::Person)), &sender)?;
    forward_signals(SignalKind::hangup(), None, &sender)?;
    if std::env::var(LIFELINE_VARIABLE).is_ok_and(|value| value == "stdin") {
        watch_lifeline(sender)?;
    }
    Ok(receiver)
}

fn watch_lifeline(sender: mpsc::Sender<NodeSignal>) -> Result<(), CommandFailure> {
    let wait = move || {
        let mut nothing = [0; 1];
        while matches!(std::io::stdin().read(&mut nothing), Ok(count) if count > 0) {}
        let _ = sender.blocking_send(NodeSignal::Now);
    };
    let started = thread::Builder::new().name("lifeline".to_owned()).spawn(wait);
    started
        .map(|_| ())
        .map_err(|error| CommandFailure::new(FailureCode::OutOfResource, error.to_string()))
}

fn forward_signals(
    kind: SignalKind,
    node_signal: Option<NodeSignal>,
    sender: &mpsc::Sender<NodeSignal>,
) -> Result<(), CommandFailure> {
    let mut signals: Signal = signal(kind).map_err(|error| {
        CommandFailure::new(
            FailureCode::OutOfResource,
            format!("cannot listen to signals: {error}"),
        )
    })?;
    let sender = sender.clone();
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            if let Some(node_signal) = node_signal
                && sender.send(node_signal).await.is_err()
            {
                return;
            }
        }
    });
    Ok(())
}
