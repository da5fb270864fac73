use ambient::SeededTokens;
use sea_query::PostgresQueryBuilder;

use super::*;
use crate::{ClaimId, Fingerprint, Key, LockTtl, Owner, Token};

fn request(key: &str) -> ClaimRequest {
    let token = Token::next(&SeededTokens::new(1));
    let (owner, key) = (Owner::new("s").expect("an owner"), Key::new(key).expect("a key"));
    let fingerprint = Fingerprint::new("f").expect("a fingerprint");
    ClaimRequest { id: ClaimId { owner, key, token }, fingerprint, lock_ttl: LockTtl::default() }
}

// I-13
#[test]
fn every_time_is_the_servers() {
    let first = request("a");
    let texts = [
        claim(&[&first], ClaimCommit::Asynchronous).to_string(PostgresQueryBuilder),
        extend(&[&first.id], LockTtl::default()).to_string(PostgresQueryBuilder),
        sweep(1).to_string(PostgresQueryBuilder),
    ];
    for text in texts {
        assert!(text.contains("now()") && !text.contains("timestamptz"), "{text}");
    }
}

#[test]
fn the_text_is_the_same_for_every_size_of_batch() {
    let (first, second) = (request("a"), request("b"));
    for commit in [ClaimCommit::Synchronous, ClaimCommit::Asynchronous] {
        assert_eq!(
            claim(&[&first], commit).build(PostgresQueryBuilder).0,
            claim(&[&first, &second], commit).build(PostgresQueryBuilder).0
        );
    }
    assert_eq!(
        abandon(&[]).build(PostgresQueryBuilder).0,
        abandon(&[&first.id, &second.id]).build(PostgresQueryBuilder).0
    );
}
