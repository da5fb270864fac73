//! The rate limit of a token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The size of a token's bucket, as the time in which it fills.
const BURST: Duration = Duration::from_secs(1);

/// A token bucket for each token: `units_per_second`, and as many at once.
///
/// The state of a token is the time at which its bucket is full again. Full buckets are removed when another
/// token appears, so there are never more than tokens in use.
#[derive(Debug)]
pub(super) struct RateLimit {
    /// Time between two units at the limit; `None` for no limit.
    interval: Option<Duration>,
    full_at: Mutex<HashMap<Arc<str>, Instant>>,
}

impl RateLimit {
    /// Creates a rate limit; 0 for no limit.
    pub(super) fn new(units_per_second: u32) -> Self {
        let interval = BURST.checked_div(units_per_second);
        Self { interval, full_at: Mutex::default() }
    }

    /// Counts a request. `Err` contains the delay until the next request is allowed.
    pub(super) fn take(&self, token: &Arc<str>) -> Result<(), Duration> {
        let interval = self.interval.unwrap_or_default();
        self.charge(token, interval, interval)
    }

    /// Counts `units` of a request that is itself already counted. A bucket that was full before the request
    /// suffices for any number, and then becomes negative.
    pub(super) fn take_further(&self, token: &Arc<str>, units: usize) -> Result<(), Duration> {
        let interval = self.interval.unwrap_or_default();
        let cost = interval.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX));
        self.charge(token, cost, cost.min(BURST.saturating_sub(interval)))
    }

    /// Takes `cost` from the bucket if `needed` is available.
    fn charge(&self, token: &Arc<str>, cost: Duration, needed: Duration) -> Result<(), Duration> {
        if cost.is_zero() {
            return Ok(());
        }
        let now = Instant::now();
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if !full_at.contains_key(token) {
            full_at.retain(|_, at| *at > now);
        }
        let at = full_at.entry(Arc::clone(token)).or_insert(now);
        let begin = (*at).max(now);
        match (begin + needed).checked_duration_since(now + BURST) {
            Some(delay) if !delay.is_zero() => Err(delay),
            _ => {
                *at = begin + cost;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_has_a_burst_of_one_second_and_then_its_rate() {
        let limit = RateLimit::new(10);
        let (one, other) = ("one".into(), "other".into());
        assert_eq!((0..15).filter(|_| limit.take(&one).is_ok()).count(), 10);
        assert_eq!(limit.take(&one), Err(Duration::from_millis(100)));
        assert_eq!(limit.take(&other), Ok(()));
        for _ in 0..30 {
            tokio::time::advance(Duration::from_millis(100)).await;
            assert_eq!((limit.take(&one), limit.take(&one).is_err()), (Ok(()), true));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_units_at_once_take_a_full_bucket_and_are_paid_for_later() {
        let (limit, token) = (RateLimit::new(10), "one".into());
        assert_eq!((limit.take(&token), limit.take_further(&token, 99)), (Ok(()), Ok(())));
        assert!(limit.take(&token).is_err());
        tokio::time::advance(Duration::from_millis(8_900)).await;
        assert_eq!(limit.take(&token), Err(Duration::from_millis(200)));
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(limit.take(&token), Ok(()));
        // The bucket is empty again.
        assert!(limit.take_further(&token, 3).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_forgotten() {
        let limit = RateLimit::new(1);
        for n in 0..100 {
            assert_eq!(limit.take(&format!("token {n}").into()), Ok(()));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(limit.full_at.lock().expect("not poisoned").len(), 1);
    }

    #[test]
    fn zero_is_no_limit() {
        let limit = RateLimit::new(0);
        assert!((0..10_000).all(|_| limit.take(&"one".into()).is_ok()));
    }
}
