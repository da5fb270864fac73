//! Requests with an unknown token: a mistake, or a guess.
//!
//! A token has 256 random bits, so guessing is hopeless; the limit keeps it cheap for the service, and the
//! log reports it. A known token is never refused because of other clients' attempts from its address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::problem::{Problem, TOO_MANY_REQUESTS};
use crate::proxies::client_network;
use crate::sparse_log::SparseLog;

/// The most requests with an unknown token from one peer address in [`GUESS_WINDOW`], on one replica, that
/// get 401 and not 429.
const MAX_GUESSES: u32 = 30;
/// The window in which they are counted, starting with the first one.
const GUESS_WINDOW: Duration = Duration::from_secs(60);
/// The most addresses that are counted. When there are more, all counts are dropped.
const MAX_GUESS_ADDRS: usize = 10_000;

/// Counts requests with an unknown token by the address of the peer, IPv6 addresses by their network.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    counted: Mutex<HashMap<Option<IpAddr>, (Instant, u32)>>,
    log: SparseLog,
}

impl Guesses {
    /// Counts one request. `Err` if there were too many: 429 until the window is over.
    pub(super) fn count(&self, addr: Option<IpAddr>) -> Result<(), Problem> {
        if let Some(count) = self.log.admit() {
            let client_addr = addr.map(tracing::field::display);
            tracing::warn!(client_addr, count, "requests have an unknown token; refusing them");
        }
        let now = Instant::now();
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= MAX_GUESS_ADDRS {
            counted.retain(|_, (since, _)| *since + GUESS_WINDOW > now);
        }
        if counted.len() >= MAX_GUESS_ADDRS {
            counted.clear();
        }
        let (since, count) = counted.entry(addr.map(client_network)).or_insert((now, 0));
        if *since + GUESS_WINDOW <= now {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        if *count <= MAX_GUESSES {
            return Ok(());
        }
        let detail = "There were too many requests with an unknown token from this address.";
        Err(Problem::new(TOO_MANY_REQUESTS, detail).retry_after(*since + GUESS_WINDOW - now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unknown_tokens_of_an_address_are_limited_until_a_minute_after_the_first() {
        let (guesses, one, other) = (Guesses::default(), "192.0.2.1".parse().ok(), "192.0.2.2".parse().ok());
        assert_eq!((0..100).filter(|_| guesses.count(one).is_ok()).count(), MAX_GUESSES as usize);
        assert!(guesses.count(other).is_ok());
        tokio::time::advance(GUESS_WINDOW).await;
        assert!(guesses.count(one).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_addresses_of_one_ipv6_network_are_limited_together() {
        let guesses = Guesses::default();
        let of_network = |n: usize| format!("2001:db8::{n:x}").parse().ok();
        assert_eq!((0..100).filter(|n| guesses.count(of_network(*n)).is_ok()).count(), MAX_GUESSES as usize);
        assert!(guesses.count("2001:db8:0:1::1".parse().ok()).is_ok());
    }
}
