//! Claiming a stream for an installation.

use store_redis::{claim_stream, installation_key};

use super::*;

// INV-15
#[tokio::test]
async fn a_stream_belongs_to_the_installation_that_claimed_it_first() {
    let world = World::new().await;
    let claim = async |stream, id| claim_stream(&world.client, stream, id).await.expect("Redis is there");
    assert_eq!(claim("a", "one").await, "one");
    assert_eq!(claim("a", "two").await, "one");
    assert_eq!(claim("a", "one").await, "one");
    assert_eq!(claim("b", "two").await, "two");
    assert_eq!(world.ask::<i64>(&["PTTL", &installation_key("a").key]).await, -1);
}

#[tokio::test]
async fn a_claim_that_redis_lost_is_written_again() {
    let world = World::new().await;
    let claim = async |id| claim_stream(&world.client, "a", id).await.expect("Redis is there");
    claim("one").await;
    world.ask::<i64>(&["DEL", &installation_key("a").key]).await;
    assert_eq!(claim("one").await, "one");
    assert_eq!(claim("two").await, "one");
}
