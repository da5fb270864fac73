//! The delay after the n-th failed attempt of an event, and the attempt after which it is given up.

use std::time::Duration;

/// The number of attempts of an event, and the delays between them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RetryPolicy {
    /// The attempt after which an event is DEAD; at least 1.
    pub max_attempts: u32,
    /// The delay after the first failed attempt; it doubles with each further one.
    pub base_delay: Duration,
    /// The longest delay, jitter included.
    pub max_delay: Duration,
    /// The largest fraction of a delay that jitter adds, from 0 to 1.
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
    /// Returns the delay after `attempts` failed attempts; `None` if there is no further attempt.
    ///
    /// The delay is `base · 2^(attempts-1)`, plus up to `jitter` of that, and never over `max_delay`.
    /// `fraction`, from 0 to 1, is the part of the jitter that is added.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 10,
        base_delay: Duration::from_secs(1),
        max_delay: Duration::from_secs(10),
        jitter: 0.15,
    };

    // O-20
    #[test]
    fn delays_double_up_to_the_longest_one_and_end_with_the_last_attempt() {
        let seconds = |attempts| POLICY.delay_after(attempts, 0.0).map(|delay| delay.as_secs());
        let delays: Vec<_> = (1..=10).map(seconds).collect();
        let expected = [1, 2, 4, 8, 10, 10, 10, 10, 10].map(Some);
        assert_eq!((&delays[..9], delays[9]), (&expected[..], None));
        assert_eq!(seconds(u32::MAX), None);
        assert_eq!(RetryPolicy::default().delay_after(24, 0.0), Some(Duration::from_secs(1 << 23).min(DAY)));
        assert_eq!(RetryPolicy::default().delay_after(25, 0.0), None);
    }

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    // O-20
    #[test]
    fn a_delay_of_many_attempts_is_the_longest_one_whatever_its_length() {
        for max_delay in [Duration::from_secs(10), Duration::MAX] {
            let policy = RetryPolicy { max_attempts: u32::MAX, max_delay, ..POLICY };
            let expected = Duration::from_secs(1 << 31).min(max_delay);
            let delay = policy.delay_after(200, 0.0).expect("it is tried again");
            assert_eq!(delay, expected);
            assert!(policy.delay_after(200, 1.0).expect("it is tried again") >= expected);
        }
    }

    proptest! {
        // O-20
        #[test]
        fn jitter_adds_up_to_its_part_and_never_exceeds_the_longest_delay(
            attempts in 1..300_u32, fraction in 0.0..1.0_f64, jitter in 0.0..1.0_f64, base_ms in 1..100_000_u64,
        ) {
            let policy = RetryPolicy {
                max_attempts: 1_000,
                base_delay: Duration::from_millis(base_ms),
                max_delay: DAY,
                jitter,
            };
            let least = policy.delay_after(attempts, 0.0).expect("it is tried again");
            let delay = policy.delay_after(attempts, fraction).expect("it is tried again");
            prop_assert!(least <= delay && delay <= DAY);
            prop_assert!(delay.as_secs_f64() <= least.as_secs_f64() * (1.0 + jitter) + 1e-6);
        }
    }
}
