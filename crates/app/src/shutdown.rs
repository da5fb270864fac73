//! Stopping the process: signals, and a watchdog.
//!
//! The first SIGTERM or SIGINT cancels the soft token, and the workers finish work in progress. The second
//! ends the process at once. [`Watchdog`] also ends it, from a thread of its own, if the stop exceeds its
//! time limit; this works even if every thread of the runtime is stuck. The order in which things stop is not
//! decided here.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The exit code of a process that ends before its stop is complete.
const EXIT_UNFINISHED: i32 = 1;

/// Starts to listen for signals, and returns the token that the first one cancels. Needs a tokio runtime.
pub fn listen() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (report, signals) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                Some(()) = terminate.recv() => "SIGTERM",
                Some(()) = interrupt.recv() => "SIGINT",
                else => return,
            };
            if report.send(name).await.is_err() {
                return;
            }
        }
    });
    let soft = CancellationToken::new();
    tokio::spawn(handle_signals(signals, soft.clone(), |code| std::process::exit(code)));
    Ok(soft)
}

/// Cancels `soft` on the first signal, and calls `exit` on the second.
async fn handle_signals(
    mut signals: mpsc::Receiver<&'static str>,
    soft: CancellationToken,
    exit: impl FnOnce(i32),
) {
    if let Some(signal) = signals.recv().await {
        tracing::info!(signal, "stopping; a second signal ends the process at once");
        soft.cancel();
    }
    if let Some(signal) = signals.recv().await {
        tracing::warn!(signal, "second signal received; the process ends at once");
        exit(EXIT_UNFINISHED);
    }
}

/// The parts of the process that still run, by name.
#[derive(Debug, Clone, Default)]
pub struct Parts(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Parts {
    /// Counts `name` as running until the returned value is dropped.
    #[must_use]
    pub fn enter(&self, name: &'static str) -> RunningPart {
        self.change(name, |count| count + 1);
        RunningPart { parts: self.clone(), name }
    }

    /// The names of the running parts.
    pub fn running(&self) -> Vec<&'static str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    fn change(&self, name: &'static str, by: impl FnOnce(usize) -> usize) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match by(parts.get(name).copied().unwrap_or(0)) {
            0 => parts.remove(name),
            count => parts.insert(name, count),
        };
    }
}

/// One running part. Dropping it marks the part as ended.
#[derive(Debug)]
pub struct RunningPart {
    parts: Parts,
    name: &'static str,
}

impl Drop for RunningPart {
    fn drop(&mut self) {
        self.parts.change(self.name, |count| count.saturating_sub(1));
    }
}

/// Ends the process after a time limit unless it is dropped before.
#[must_use]
#[derive(Debug)]
pub struct Watchdog {
    _stopped: Sender<()>,
    deadline: Instant,
}

impl Watchdog {
    /// Starts the timer. After `bound` the process logs which of `parts` did not end, and exits with 1.
    pub fn start(bound: Duration, parts: Parts) -> Self {
        Self::with_exit(bound, parts, |code| std::process::exit(code))
    }

    /// The time left before the process is ended.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn with_exit(bound: Duration, parts: Parts, exit: impl FnOnce(i32) + Send + 'static) -> Self {
        let (stopped, over) = channel::<()>();
        let deadline = Instant::now() + bound;
        thread::spawn(move || {
            if over.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                let unfinished = parts.running().join(", ");
                tracing::error!(
                    unfinished,
                    bound_ms = bound.as_millis() as u64,
                    "the shutdown timeout has passed; the process ends before everything has stopped"
                );
                exit(EXIT_UNFINISHED);
            }
        });
        Self { _stopped: stopped, deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_signal_stops_gracefully_and_the_second_at_once() {
        let (report, signals) = mpsc::channel(2);
        let soft = CancellationToken::new();
        let (exit, code) = channel();
        let obeying = tokio::spawn(handle_signals(signals, soft.clone(), move |code| {
            exit.send(code).expect("is waited for")
        }));

        report.send("SIGTERM").await.expect("is obeyed");
        soft.cancelled().await;
        assert!(code.try_recv().is_err(), "the first signal ended the process");
        report.send("SIGINT").await.expect("is obeyed");
        obeying.await.expect("does not panic");
        assert_eq!(code.recv(), Ok(1));
    }

    #[test]
    fn a_part_runs_until_the_last_of_its_name_is_dropped() {
        let parts = Parts::default();
        let (first, second, other) =
            (parts.enter("publisher"), parts.enter("publisher"), parts.enter("intake"));
        drop(first);
        assert_eq!(parts.running(), ["intake", "publisher"]);
        drop((second, other));
        assert_eq!(parts.running(), Vec::<&str>::new());
    }

    #[test]
    fn a_stop_that_takes_too_long_ends_the_process() {
        let (exit, code) = channel();
        let _watchdog = Watchdog::with_exit(Duration::from_millis(1), Parts::default(), move |code| {
            exit.send(code).expect("is waited for");
        });
        assert_eq!(code.recv_timeout(Duration::from_secs(30)), Ok(1));
    }

    #[test]
    fn a_stop_in_time_does_not_end_the_process() {
        let (exit, code) = channel();
        let watchdog = Watchdog::with_exit(Duration::from_secs(600), Parts::default(), move |code| {
            exit.send(code).expect("is waited for");
        });
        drop(watchdog);
        // The thread ended without sending an exit code, which closes the channel.
        assert_eq!(code.recv_timeout(Duration::from_secs(30)), Err(RecvTimeoutError::Disconnected));
    }
}
