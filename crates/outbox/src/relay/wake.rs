//! Wakes a relay when a producer announces events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ambient::{Episode, Recovery, error_chain};
use pg::{Dsn, Listener, SessionSettings};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ChannelName;

/// The pause between two polls of an outbox while the relay receives announcements.
pub(crate) const LISTENING_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The interval of checks that the server is still there.
const LISTENER_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The pause before the first attempt to listen again; it doubles.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
/// The longest pause before an attempt to listen again.
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// Signals when a relay must look for events, and whether it is listening.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wake(Arc<WakeState>);

#[derive(Debug, Default)]
struct WakeState {
    announced: Notify,
    listening: AtomicBool,
}

impl Wake {
    /// Returns the time to wait without an announcement.
    pub(crate) fn poll_interval(&self, configured: Duration) -> Duration {
        if self.0.listening.load(Ordering::SeqCst) {
            configured.max(LISTENING_POLL_INTERVAL)
        } else {
            configured
        }
    }

    /// Waits until an announcement arrives or may have been missed.
    pub(crate) async fn announced(&self) {
        self.0.announced.notified().await;
    }

    fn listening(&self, listening: bool) {
        self.0.listening.store(listening, Ordering::SeqCst);
        // Announcements may have been missed before, and the shorter interval must begin at once.
        self.0.announced.notify_one();
    }
}

/// The source of announcements.
#[derive(Clone, Debug)]
pub(crate) struct AnnouncementSource {
    pub(crate) dsn: Dsn,
    pub(crate) channel: ChannelName,
}

/// Listens until `stop`.
pub(crate) async fn listen(source: &AnnouncementSource, wake: &Wake, stop: &CancellationToken) {
    let mut pause = RECONNECT_MIN;
    let failures = Episode::default();
    while !stop.is_cancelled() {
        let connected = pg::listen(&source.dsn, source.channel.as_str(), SessionSettings::default());
        let error = match stop.run_until_cancelled(connected).await {
            None => break,
            Some(Err(error)) => error,
            Some(Ok(listener)) => {
                if let Some(Recovery { times, lasted_ms }) = failures.recovered(Instant::now().into_std()) {
                    let listen_channel = source.channel.as_str();
                    tracing::info!(listen_channel, times, lasted_ms, "listening for outbox events recovered");
                }
                pause = RECONNECT_MIN;
                wake.listening(true);
                let ended = stop.run_until_cancelled(pass_on(&listener, wake)).await;
                wake.listening(false);
                match ended {
                    None => break,
                    Some(error) => error,
                }
            }
        };
        let failure = failures.failed(Instant::now().into_std(), ());
        if failure.is_logged {
            tracing::warn!(
                listen_channel = source.channel.as_str(),
                error = error_chain(&error),
                times = failure.times,
                "not listening for outbox events; polling until it listens again"
            );
        }
        // If cancelled, the loop ends.
        let _: Option<()> = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}

/// Forwards announcements until the connection fails.
async fn pass_on(listener: &Listener, wake: &Wake) -> pg::PgError {
    loop {
        let heard = tokio::time::timeout(LISTENER_CHECK_INTERVAL, listener.heard()).await;
        let outcome = match heard {
            Ok(outcome) => outcome.inspect(|()| wake.0.announced.notify_one()),
            Err(_) => listener.check().await,
        };
        if let Err(error) = outcome {
            return error;
        }
    }
}
