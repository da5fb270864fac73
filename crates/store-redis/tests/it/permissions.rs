//! The permissions that are tried at the start.

use domain::ports::{LeaseStore, StoreError};
use store_redis::{KeyUse, RedisLeases};

use crate::*;

const STREAMS: [(KeyUse, &str); 2] = [(KeyUse::Intents, "in"), (KeyUse::Outbound, "out")];

async fn missing(world: &World) -> Vec<String> {
    world.client.missing_permissions(KeyUse::Own, &STREAMS).await.expect("Redis is there")
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

#[tokio::test]
async fn a_relay_needs_less_than_the_service() {
    let world = World::new().await;
    world
        .ask::<()>(&[
            "ACL",
            "SETUSER",
            "default",
            "resetkeys",
            "~notification:*",
            "~in",
            "-@all",
            "+ping",
            "+info",
            "+time",
            "+set",
            "+get",
            "+exists",
            "+pexpire",
            "+type",
            "+xadd",
            "+xrevrange",
            "+evalsha",
            "+script|load",
            "+hello",
            "+auth",
            "+select",
            "+client",
            "+acl",
        ])
        .await;
    let missing = async || {
        let found = world.client.missing_permissions(KeyUse::OwnOfRelay, &[(KeyUse::Relayed, "in")]).await;
        found.expect("Redis is there")
    };
    assert_eq!(missing().await, Vec::<String>::new());
    world.ask::<()>(&["ACL", "SETUSER", "default", "-pexpire", "-xadd"]).await;
    let found = missing().await;
    assert!(found[0].starts_with("PEXPIRE on notification:"), "{found:?}");
    assert_eq!(found[1..], ["XADD on in"]);
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
    assert_eq!(won, [domain::ports::LeaseOutcome::Won]);
}
