//! Unique ids: lease tokens, lock ids.

use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRngCore;
use rand::rngs::OsRng;

/// The source of unique bytes that cannot be guessed.
pub trait Tokens: Send + Sync {
    /// Returns sixteen bytes that no other call, process or machine gets.
    fn next(&self) -> [u8; 16];
}

/// The operating system's random numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomTokens;

impl Tokens for RandomTokens {
    fn next(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        // Cannot fail: a system without a source of random numbers runs no TLS and no database driver either.
        OsRng.try_fill_bytes(&mut bytes).expect("the operating system gives random bytes");
        bytes
    }
}

/// Counts up from a seed: the same seed gives the same tokens.
#[derive(Debug)]
pub struct SeededTokens(AtomicU64);

impl SeededTokens {
    /// Creates tokens that start from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Tokens for SeededTokens {
    fn next(&self) -> [u8; 16] {
        u128::from(self.0.fetch_add(1, Ordering::SeqCst)).to_be_bytes()
    }
}
