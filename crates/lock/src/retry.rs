//! Retries while another client holds a lock.

use std::time::Duration;

/// The growth of the pauses between attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backoff {
    /// All pauses are equal.
    Fixed,
    /// Each pause is twice as long as the one before.
    Exponential,
}

/// The random part of a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryJitter {
    /// No part of it.
    None,
    /// Half of it.
    Equal,
    /// All of it.
    Full,
}

/// The number and the timing of retries to acquire a lock. The default: ten retries from 100 ms, doubling,
/// within 5 s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Retry {
    /// The number of attempts after the first.
    pub max_retries: u32,
    /// The first pause.
    pub delay: Duration,
    /// The timeout for all attempts and pauses together.
    pub timeout: Duration,
    /// The growth of the pauses.
    pub backoff: Backoff,
    /// The random part of a pause.
    pub jitter: RetryJitter,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_retries: 10,
            delay: Duration::from_millis(100),
            timeout: Duration::from_secs(5),
            backoff: Backoff::Exponential,
            jitter: RetryJitter::Equal,
        }
    }
}

impl Retry {
    /// Returns the pause before retry `number`, which counts from 1; `fraction` is from 0 to 1. Never longer
    /// than the timeout.
    pub(crate) fn pause(&self, number: u32, fraction: f64) -> Duration {
        let doublings = match self.backoff {
            Backoff::Fixed => 0,
            Backoff::Exponential => number.saturating_sub(1),
        };
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let whole = self.delay.saturating_mul(factor).min(self.timeout);
        match self.jitter {
            RetryJitter::None => whole,
            RetryJitter::Equal => whole / 2 + (whole / 2).mul_f64(fraction),
            RetryJitter::Full => whole.mul_f64(fraction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(retry: Retry, fraction: f64) -> Vec<u128> {
        (1..=4).map(|number| retry.pause(number, fraction).as_millis()).collect()
    }

    #[test]
    fn exponential_pauses_double() {
        let retry = Retry { jitter: RetryJitter::None, ..Retry::default() };
        assert_eq!(pauses(retry, 0.5), [100, 200, 400, 800]);
    }

    #[test]
    fn fixed_pauses_stay() {
        let retry = Retry { backoff: Backoff::Fixed, jitter: RetryJitter::None, ..Retry::default() };
        assert_eq!(pauses(retry, 0.5), [100, 100, 100, 100]);
    }

    #[test]
    fn equal_jitter_randomizes_half_of_a_pause() {
        assert_eq!(pauses(Retry::default(), 0.0), [50, 100, 200, 400]);
        assert_eq!(pauses(Retry::default(), 0.5), [75, 150, 300, 600]);
    }

    #[test]
    fn full_jitter_randomizes_a_whole_pause() {
        let retry = Retry { jitter: RetryJitter::Full, ..Retry::default() };
        assert_eq!(pauses(retry, 0.0), [0, 0, 0, 0]);
        assert_eq!(pauses(retry, 0.5), [50, 100, 200, 400]);
    }

    #[test]
    fn no_pause_is_longer_than_the_timeout() {
        let retry = Retry { jitter: RetryJitter::None, ..Retry::default() };
        assert_eq!(retry.pause(u32::MAX, 0.0), retry.timeout);
    }
}
