//! Idempotency keys are deleted after they have expired, and not before.

use std::time::Duration;

use domain::ports::{IdempotencyStore, KeyClaim, KeyClaimRequest, KeyClaimToken, KeySweep};
use domain::record::IdempotencyKey;

use super::idempotency::IdempotencyFixture;

/// A store under test.
pub trait KeysFixture: IdempotencyFixture {
    /// The sweep that deletes keys.
    fn sweep(&self) -> &impl KeySweep;

    /// The existing keys, sorted.
    fn keys(&self) -> impl Future<Output = Vec<String>>;
}

/// Runs every case of [`crate::contract::keys`], each on a fixture of its own.
#[macro_export]
macro_rules! keys_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            keys, $fixture;
            nothing_is_deleted_where_there_is_no_key,
            expired_keys_are_deleted_and_others_stay,
            no_more_are_deleted_than_the_limit_and_the_oldest_first,
            a_key_that_was_won_again_after_it_had_expired_stays,
        );
    };
}

const LOCK_TTL: Duration = Duration::from_secs(60);
/// More than any case has.
const ALL: usize = 100;

fn key(number: u8) -> IdempotencyKey {
    IdempotencyKey { producer: "game_master".to_owned(), key: format!("key-{number}") }
}

async fn claim(fixture: &impl KeysFixture, number: u8, by: u8) -> KeyClaim {
    let key = key(number);
    let claim = KeyClaimRequest { key: &key, fingerprint: "print", token: KeyClaimToken([by; 16]) };
    let outcomes = fixture.store().claim_keys(&[claim], LOCK_TTL).await;
    outcomes.expect("the store is there").remove(0)
}

/// Claims keys 1 to `count`, each at a time of its own.
async fn claim_all(fixture: &impl KeysFixture, count: u8) {
    for number in 1..=count {
        assert_eq!(claim(fixture, number, number).await, KeyClaim::New);
    }
}

async fn sweep(fixture: &impl KeysFixture, limit: usize) -> u64 {
    fixture.sweep().sweep_idempotency_keys(limit).await.expect("the store is there")
}

pub async fn nothing_is_deleted_where_there_is_no_key(fixture: impl KeysFixture) {
    assert_eq!(sweep(&fixture, ALL).await, 0);
}

pub async fn expired_keys_are_deleted_and_others_stay(fixture: impl KeysFixture) {
    claim_all(&fixture, 3).await;
    assert_eq!(sweep(&fixture, ALL).await, 0);
    fixture.expire(&key(2)).await;
    assert_eq!(sweep(&fixture, ALL).await, 1);
    assert_eq!(fixture.keys().await, ["key-1", "key-3"]);
}

pub async fn no_more_are_deleted_than_the_limit_and_the_oldest_first(fixture: impl KeysFixture) {
    claim_all(&fixture, 4).await;
    for number in [3, 1, 4, 2] {
        fixture.expire(&key(number)).await;
    }
    assert_eq!(sweep(&fixture, 2).await, 2);
    assert_eq!(fixture.keys().await, ["key-2", "key-4"]);
    assert_eq!(sweep(&fixture, 2).await, 2);
    assert_eq!(fixture.keys().await, [""; 0]);
}

pub async fn a_key_that_was_won_again_after_it_had_expired_stays(fixture: impl KeysFixture) {
    claim_all(&fixture, 1).await;
    fixture.expire(&key(1)).await;
    assert_eq!(claim(&fixture, 1, 9).await, KeyClaim::New);
    assert_eq!(sweep(&fixture, ALL).await, 0);
    assert_eq!(fixture.keys().await, ["key-1"]);
}
