//! The delay of a route after its n-th failed attempt.

use std::time::Duration;

/// The largest part of a delay that jitter subtracts.
const JITTER_SHARE: f64 = 0.2;

/// The bounds of the delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackoffBounds {
    /// The delay after the first failure.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl BackoffBounds {
    /// Returns `min(max, min * 2^(failures-1))`, reduced by up to 20 %. `jitter` from 0 to 1 selects the
    /// share of these 20 %.
    pub fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let full = self.min.saturating_mul(1 << doublings).min(self.max);
        let lowered = full.as_secs_f64() * (1.0 - JITTER_SHARE * jitter.clamp(0.0, 1.0));
        Duration::try_from_secs_f64(lowered).map_or(full, |delay| delay.min(full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: BackoffBounds =
        BackoffBounds { min: Duration::from_secs(1), max: Duration::from_secs(300) };

    #[test]
    fn the_delay_doubles_from_min_to_max_and_stays_there() {
        let delays: Vec<u64> = (1..=11).map(|n| BACKOFF.delay(n, 0.0).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(BACKOFF.delay(u32::MAX, 0.0), BACKOFF.max);
    }

    #[test]
    fn jitter_lowers_a_delay_by_at_most_a_fifth() {
        assert_eq!(BACKOFF.delay(3, 1.0), Duration::from_millis(3200));
        assert_eq!(BACKOFF.delay(3, 0.5), Duration::from_millis(3600));
        assert_eq!(BACKOFF.delay(3, 7.0), Duration::from_millis(3200));
    }

    #[test]
    fn extreme_delays_do_not_overflow() {
        let ladder =
            BackoffBounds { min: Duration::from_secs(u64::MAX / 4), max: Duration::from_secs(u64::MAX / 4) };
        assert!(ladder.delay(40, 0.0) <= ladder.max);
    }
}
