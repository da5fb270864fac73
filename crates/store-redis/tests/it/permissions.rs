//! The permissions that a start tries.

use domain::ports::{LeaseStore, StoreError};
use store_redis::{KeyUse, RedisLeases};

use crate::*;

const STREAMS: [(KeyUse, &str); 2] = [(KeyUse::Intents, "in"), (KeyUse::Outbound, "out")];

async fn missing(world: &World) -> Vec<String> {
    world.client.missing_permissions(&STREAMS).await.expect("Redis is there")
}

#[tokio::test]
async fn commands_and_keys_that_the_user_may_not_use_are_named_and_nothing_is_changed() {
    let world = World::new().await;
    world.ask::<i64>(&["RPUSH", "other", "x"]).await;
    world.ask::<String>(&["XADD", "in", "5-1", "a", "b"]).await;
    assert_eq!(missing(&world).await, Vec::<String>::new());
    world.ask::<()>(&["ACL", "SETUSER", "default", "-xadd", "-time"]).await;
    assert_eq!(missing(&world).await, ["TIME", "XADD on in", "XADD on out"]);
    world
        .ask::<()>(&["ACL", "SETUSER", "default", "+@all", "resetkeys", "~notification:*", "~in", "~other"])
        .await;
    let found = missing(&world).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("with the key out"), "{found:?}");
    world.ask::<()>(&["ACL", "SETUSER", "default", "allkeys"]).await;
    let mut keys: Vec<String> = world.ask(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, ["in", "other"]);
    assert_eq!(world.ask::<i64>(&["XLEN", "in"]).await, 1);
}

// INV-09
#[tokio::test]
async fn a_permission_that_is_withdrawn_is_an_outage_of_the_connection() {
    let world = World::new().await;
    let leases = RedisLeases::new(&world.client, &Keyspace::default());
    drop(leases.acquire_leases(&keys(0..1), &token("a"), LEASE_TTL).await.expect("Redis is there"));
    for withdrawn in ["-set", "-evalsha"] {
        world.ask::<()>(&["ACL", "SETUSER", "default", withdrawn]).await;
        let refused = leases.acquire_leases(&keys(1..2), &token("a"), LEASE_TTL).await;
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{withdrawn}: {refused:?}");
        world.ask::<()>(&["ACL", "SETUSER", "default", "+@all"]).await;
    }
    let won = leases.acquire_leases(&keys(1..2), &token("a"), LEASE_TTL).await.expect("it is back");
    assert_eq!(won, [domain::ports::Lease::Won]);
}
