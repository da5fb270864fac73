//! How long an event waits after its n-th failed attempt, and when it is given up.

use std::time::Duration;

/// How often an event is tried, and how far apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryPolicy {
    /// The attempt after which an event is DEAD; at least 1.
    pub max_attempts: u32,
    /// The delay after the first failed attempt; it doubles with each further one.
    pub base_delay: Duration,
    /// The longest delay, jitter included.
    pub max_delay: Duration,
    /// The largest part of a delay that jitter adds, from 0 to 1.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 25,
            base_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(24 * 60 * 60),
            jitter: 0.15,
        }
    }
}

impl RetryPolicy {
    /// How long an event waits that has failed `attempts` times; `None` if it is tried no more.
    ///
    /// `base · 2^(attempts-1)`, plus up to `jitter` of that, and never over `max_delay`. `fraction` from 0 to 1 is the part of the
    /// jitter that is added.
    pub fn delay_after(&self, attempts: u32, fraction: f64) -> Option<Duration> {
        if attempts >= self.max_attempts {
            return None;
        }
        let doublings = attempts.saturating_sub(1).min(31);
        let delay = self.base_delay.saturating_mul(1 << doublings).min(self.max_delay);
        let longer = delay.as_secs_f64() * (1.0 + self.jitter * fraction.clamp(0.0, 1.0));
        Some(Duration::try_from_secs_f64(longer).unwrap_or(self.max_delay).clamp(delay, self.max_delay))
    }
}
