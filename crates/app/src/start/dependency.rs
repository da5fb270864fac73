//! The waits of a start for its dependencies.

use std::time::Duration;

use ambient::{Episode, Recovery};
use tokio::time::{Instant, timeout_at};

/// The pause between two attempts to reach a dependency.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The time limit for a dependency to respond at the start, for all calls together.
pub(crate) struct DependencyStart {
    dependency: &'static str,
    limit: Duration,
    deadline: Instant,
}

impl DependencyStart {
    /// Starts the time limit now.
    pub(super) fn begin(dependency: &'static str, limit: Duration) -> Self {
        Self { dependency, limit, deadline: Instant::now() + limit }
    }

    /// The same time limit for another dependency.
    pub(super) fn of(&self, dependency: &'static str) -> Self {
        Self { dependency, ..*self }
    }

    /// Adds time that something else took.
    pub(super) fn extend(&mut self, time: Duration) {
        self.deadline += time;
    }

    /// Calls `ask` until it succeeds or the time is over. The time limit also ends a call in progress. A
    /// pooler whose configuration makes it unusable is an error at once.
    pub(super) async fn until_answered<T, E, F>(&self, ask: impl FnMut() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, E>>,
        E: Into<anyhow::Error>,
    {
        self.retry_if(|error| !pg::is_unusable_pooler(error.as_ref()), ask).await
    }

    /// Does the same for a call whose errors may be permanent: retries it only if it timed out.
    pub(crate) async fn until_in_time<T, E, F>(&self, ask: impl FnMut() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, E>>,
        E: Into<anyhow::Error>,
    {
        self.retry_if(|error| pg::is_late(error.as_ref()), ask).await
    }

    async fn retry_if<T, E, F>(
        &self,
        may_pass: impl Fn(&anyhow::Error) -> bool,
        mut ask: impl FnMut() -> F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, E>>,
        E: Into<anyhow::Error>,
    {
        let Self { dependency, limit, deadline } = *self;
        let (mut before, failures) = (None, Episode::default());
        loop {
            let error: anyhow::Error = match timeout_at(deadline, ask()).await {
                Ok(Ok(answer)) => {
                    if let Some(Recovery { times, lasted_ms }) = failures.recovered(Instant::now().into_std())
                    {
                        tracing::info!(dependency, times, lasted_ms, "dependency recovered");
                    }
                    return Ok(answer);
                }
                Ok(Err(error)) => error.into(),
                Err(_) => {
                    let late = format!("timed out after {limit:?}");
                    // The error of the last completed attempt may show the cause.
                    return Err(match before {
                        Some(error) => anyhow::Error::context(error, late),
                        None => anyhow::Error::msg(late),
                    });
                }
            };
            if !may_pass(&error) || Instant::now() + START_RETRY_INTERVAL >= deadline {
                return Err(error);
            }
            let failure = failures.failed(Instant::now().into_std(), ());
            if failure.is_logged {
                tracing::warn!(
                    dependency,
                    error = domain::ports::error_chain(&*error),
                    times = failure.times,
                    "waiting for a dependency"
                );
            }
            before = Some(error);
            tokio::time::sleep(START_RETRY_INTERVAL).await;
        }
    }
}

/// Repeats a check that timed out until `limit` has passed in all. Never interrupts a check, because some
/// need more time.
pub(crate) async fn repeat_if_late<T, E, F>(limit: Duration, mut check: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
    E: std::error::Error + 'static,
{
    let deadline = Instant::now() + limit;
    loop {
        match check().await {
            Err(error) if pg::is_late(&error) && Instant::now() + START_RETRY_INTERVAL < deadline => {
                tracing::debug!(
                    error = domain::ports::error_chain(&error),
                    "a check of the start is repeated"
                );
                tokio::time::sleep(START_RETRY_INTERVAL).await;
            }
            outcome => return outcome,
        }
    }
}
