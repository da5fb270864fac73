//! Jitter: random delays, so that calls that failed together are not retried together.

/// The source of randomness.
pub trait Jitter: Send + Sync {
    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    fn fraction(&self) -> f64;
}

/// Uniformly distributed numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomJitter;

impl Jitter for RandomJitter {
    #[expect(clippy::disallowed_methods, reason = "the Jitter is the one place that reads random numbers")]
    fn fraction(&self) -> f64 {
        rand::random()
    }
}

/// A source that always returns the same fraction.
#[derive(Debug, Clone, Copy)]
pub struct FixedJitter(pub f64);

impl Jitter for FixedJitter {
    fn fraction(&self) -> f64 {
        self.0
    }
}
