//! A session of the console is found until it is deleted or expires.

use std::time::Duration;

use domain::ports::{SessionHash, SessionStore, SessionSweep, StoreError, TokenHash};

/// A store under test.
pub trait SessionsFixture {
    /// The store.
    fn store(&self) -> &(impl SessionStore + SessionSweep);

    /// The ids of the sessions that have a row, sorted.
    fn sessions(&self) -> impl Future<Output = Vec<SessionHash>>;

    /// Makes all rows older.
    fn age(&self, by: Duration) -> impl Future<Output = ()>;
}

/// Runs every case of [`crate::contract::sessions`], each on a fixture of its own.
#[macro_export]
macro_rules! sessions_contract {
    ($fixture:expr) => {
        $crate::contract_cases!(
            sessions, $fixture;
            a_session_is_found_with_its_token_until_it_is_deleted,
            a_second_session_of_the_same_id_is_refused_and_the_first_stays,
            a_session_ends_when_its_time_is_over,
            only_sessions_that_have_ended_are_swept_and_no_more_than_the_limit,
        );
    };
}

const HOUR: Duration = Duration::from_secs(3_600);

fn id(number: u8) -> SessionHash {
    SessionHash([number; 32])
}

async fn insert(fixture: &impl SessionsFixture, number: u8, lifetime: Duration) {
    let inserted =
        fixture.store().insert_session(&id(number), &TokenHash([number + 100; 32]), lifetime).await;
    inserted.expect("the store is there");
}

async fn token(fixture: &impl SessionsFixture, number: u8) -> Option<TokenHash> {
    fixture.store().get_session(&id(number)).await.expect("the store is there")
}

pub async fn a_session_is_found_with_its_token_until_it_is_deleted(fixture: impl SessionsFixture) {
    insert(&fixture, 1, HOUR).await;
    insert(&fixture, 2, HOUR).await;
    assert_eq!(token(&fixture, 1).await, Some(TokenHash([101; 32])));
    assert_eq!(token(&fixture, 3).await, None);
    for expected in [1, 0] {
        assert_eq!(fixture.store().delete_session(&id(1)).await.expect("the store is there"), expected);
        assert_eq!((token(&fixture, 1).await, token(&fixture, 2).await), (None, Some(TokenHash([102; 32]))));
    }
}

pub async fn a_second_session_of_the_same_id_is_refused_and_the_first_stays(fixture: impl SessionsFixture) {
    insert(&fixture, 1, HOUR).await;
    let second = fixture.store().insert_session(&id(1), &TokenHash([9; 32]), 9 * HOUR).await;
    assert!(matches!(second, Err(StoreError::Refused { .. })), "{second:?}");
    assert_eq!(token(&fixture, 1).await, Some(TokenHash([101; 32])));
    fixture.age(2 * HOUR).await;
    assert_eq!(token(&fixture, 1).await, None);
}

pub async fn a_session_ends_when_its_time_is_over(fixture: impl SessionsFixture) {
    insert(&fixture, 1, HOUR).await;
    insert(&fixture, 2, 3 * HOUR).await;
    fixture.age(2 * HOUR).await;
    assert_eq!((token(&fixture, 1).await, token(&fixture, 2).await.is_some()), (None, true));
}

pub async fn only_sessions_that_have_ended_are_swept_and_no_more_than_the_limit(
    fixture: impl SessionsFixture,
) {
    for (number, hours) in [(1, 3), (2, 1), (3, 2), (4, 9)] {
        insert(&fixture, number, HOUR * hours).await;
    }
    fixture.age(4 * HOUR).await;
    let sweep = async |limit| fixture.store().sweep_sessions(limit).await.expect("the store is there");
    assert_eq!((sweep(2).await, fixture.sessions().await), (2, vec![id(1), id(4)]));
    assert_eq!((sweep(2).await, fixture.sessions().await), (1, vec![id(4)]));
}
