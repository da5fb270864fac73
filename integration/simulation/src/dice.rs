//! Randomness that a seed determines. Each part of a simulation has dice of its own, so that removing a fault
//! from a plan changes the others as little as possible.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ambient::Jitter;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Dice. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Arc<Mutex<SmallRng>>);

impl Dice {
    /// The dice of one part of the simulation with this seed.
    pub(crate) fn new(seed: u64, part: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        (seed, part).hash(&mut hasher);
        Self(Arc::new(Mutex::new(SmallRng::seed_from_u64(hasher.finish()))))
    }

    fn roll<T>(&self, roll: impl FnOnce(&mut SmallRng) -> T) -> T {
        roll(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        self.roll(|rng| rng.random_range(low..=high))
    }

    /// A time from `low` to `high` milliseconds.
    pub(crate) fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// True in `share` of a thousand cases.
    pub(crate) fn permille(&self, share: u64) -> bool {
        self.between(0, 999) < share
    }

    /// One of the elements.
    pub(crate) fn one<'a, T>(&self, of: &'a [T]) -> Option<&'a T> {
        match of.len() {
            0 => None,
            len => of.get(self.roll(|rng| rng.random_range(0..len))),
        }
    }

    /// A number of milliseconds from `-most` to `most`.
    pub(crate) fn signed_ms(&self, most: i64) -> i64 {
        self.roll(|rng| rng.random_range(-most..=most))
    }
}

impl Jitter for Dice {
    fn fraction(&self) -> f64 {
        self.roll(|rng| rng.random::<f64>())
    }
}
