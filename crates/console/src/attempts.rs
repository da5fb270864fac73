//! The limit on attempts to sign in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ambient::Timestamp;
use http_server::client_network;

/// The most failed attempts of a client address in [`ATTEMPT_WINDOW`], on one replica.
const MAX_FAILED_ATTEMPTS: usize = 5;
/// The time window in which failed attempts are counted.
const ATTEMPT_WINDOW: Duration = Duration::from_secs(60);
/// The most client addresses whose attempts are counted. Beyond that, the address whose last failure is
/// oldest is forgotten.
const MAX_ATTEMPT_ADDRS: usize = 10_000;

/// The failed attempts to sign in, by client address.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<Option<IpAddr>, Vec<Timestamp>>>);

impl Attempts {
    /// Creates an empty count.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts an attempt as failed before the token is checked, so that concurrent attempts cannot all pass.
    /// `Err` is the time until the next attempt is allowed.
    pub(crate) fn begin(&self, addr: Option<IpAddr>, now: Timestamp) -> Result<(), Duration> {
        let mut attempts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let addr = addr.map(client_network);
        let is_recent = |at: &Timestamp| now.saturating_since(*at) < ATTEMPT_WINDOW;
        if attempts.len() >= MAX_ATTEMPT_ADDRS && !attempts.contains_key(&addr) {
            attempts.retain(|_, failed| failed.last().is_some_and(is_recent));
            let oldest =
                attempts.iter().min_by_key(|(_, failed)| failed.last().copied()).map(|(addr, _)| *addr);
            if let Some(oldest) = oldest.filter(|_| attempts.len() >= MAX_ATTEMPT_ADDRS) {
                attempts.remove(&oldest);
            }
        }
        let failed = attempts.entry(addr).or_default();
        failed.retain(is_recent);
        match failed.first() {
            Some(first) if failed.len() >= MAX_FAILED_ATTEMPTS => {
                Err(ATTEMPT_WINDOW.saturating_sub(now.saturating_since(*first)))
            }
            _ => {
                failed.push(now);
                Ok(())
            }
        }
    }

    /// Removes the last attempt from the count, because it succeeded.
    pub(crate) fn succeeded(&self, addr: Option<IpAddr>) {
        let mut attempts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failed) = attempts.get_mut(&addr.map(client_network)) {
            failed.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_700_000 + seconds * 1_000).expect("in range")
    }

    fn addr(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn the_sixth_failure_within_a_minute_is_refused_until_the_first_is_a_minute_ago() {
        let (attempts, client) = (Attempts::new(), addr("192.0.2.1"));
        for second in 0..5 {
            assert_eq!(attempts.begin(client, at(second)), Ok(()));
        }
        assert_eq!(attempts.begin(client, at(10)), Err(Duration::from_secs(50)));
        assert_eq!(attempts.begin(addr("192.0.2.2"), at(10)), Ok(()));
        assert_eq!(attempts.begin(client, at(60)), Ok(()));
        assert_eq!(attempts.begin(client, at(60)), Err(Duration::from_secs(1)));
    }

    #[test]
    fn a_success_is_no_failure() {
        let (attempts, client) = (Attempts::new(), addr("192.0.2.1"));
        for _ in 0..20 {
            assert_eq!(attempts.begin(client, at(0)), Ok(()));
            attempts.succeeded(client);
        }
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_are_one_client() {
        let attempts = Attempts::new();
        for last in 1..=5 {
            assert_eq!(attempts.begin(addr(&format!("2001:db8::{last}")), at(0)), Ok(()));
        }
        assert!(attempts.begin(addr("2001:db8::ffff"), at(0)).is_err());
        assert_eq!(attempts.begin(addr("2001:db8:0:1::1"), at(0)), Ok(()));
    }

    #[test]
    fn the_number_of_addresses_is_bounded_and_the_one_that_failed_last_is_kept() {
        let attempts = Attempts::new();
        for number in 0..MAX_ATTEMPT_ADDRS as u32 + 100 {
            let client = Some(IpAddr::V4((0x0a00_0000 + number).into()));
            let at = Timestamp::from_millis(1_775_121_700_000 + i64::from(number)).expect("in range");
            assert_eq!(attempts.begin(client, at), Ok(()));
        }
        let kept = attempts.0.lock().expect("not poisoned");
        assert_eq!(kept.len(), MAX_ATTEMPT_ADDRS);
        assert!(!kept.contains_key(&addr("10.0.0.0")) && kept.contains_key(&addr("10.0.0.100")));
    }
}
