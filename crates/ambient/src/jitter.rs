//! The spread of retries, so that what failed together does not come back together.

/// Where chance comes from.
pub trait Jitter: Send + Sync {
    /// A number from 0 (inclusive) to 1 (exclusive).
    fn fraction(&self) -> f64;
}

/// Evenly spread.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomJitter;

impl Jitter for RandomJitter {
    #[expect(clippy::disallowed_methods, reason = "this is the Jitter that everybody else asks")]
    fn fraction(&self) -> f64 {
        rand::random()
    }
}

/// Always the same fraction.
#[derive(Debug, Clone, Copy)]
pub struct FixedJitter(pub f64);

impl Jitter for FixedJitter {
    fn fraction(&self) -> f64 {
        self.0
    }
}
