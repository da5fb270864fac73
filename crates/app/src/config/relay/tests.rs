use super::*;
use crate::config::{Config, load};

const NEEDED: [(&str, &str); 3] = [
    ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
    ("NOTIFICATION_OUTBOX_DSN", "postgres://me:s3cret@game-db/game"),
    ("NOTIFICATION_OUTBOX_PRODUCER", "game_master"),
];

/// The required variables, overridden by `changes`.
fn vars(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let kept = NEEDED.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    kept.chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn relay(changes: &[(&str, &str)]) -> RelayConfig {
    let loaded = load::<RelayProcessConfig>(vars(changes)).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.warnings, Vec::<String>::new());
    loaded.config.relay
}

fn errors(changes: &[(&str, &str)]) -> String {
    load::<RelayProcessConfig>(vars(changes)).expect_err("something is wrong").to_string()
}

/// The variables of a service without a relay, and `changes`.
fn service(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let needed = [
        ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
        ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@db/galaxy"),
        ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users:8080"),
    ];
    needed.iter().chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn three_variables_are_enough_for_a_relay() {
    let config = relay(&[]);
    assert_eq!(config.outbox.dsn.to_string(), "postgres://me:****@game-db:5432/game");
    assert_eq!(config.outbox.table, TableName::default());
    assert_eq!((config.batch_size, config.poll_interval), (500, Duration::from_millis(500)));
    assert_eq!(config.lease_timeout, Duration::from_mins(1));
    assert_eq!(config.retry, RetryPolicy::default());
    assert_eq!((config.relay_id, config.listen_channel), (None, None));
    let RelayMode::Intents { producer, stream, types, .. } = config.mode else { panic!("mode intents") };
    assert_eq!((&*producer, &*stream, types), ("game_master", "notification:intents", EventTypes::All));
}

#[test]
fn the_variables_of_the_service_alone_do_not_concern_a_relay() {
    relay(&[
        ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "nonsense"),
        ("NOTIFICATION_ROUTE_LEASE_TTL", "1"),
        ("NOTIFICATION_REPLICA_ID", "two words"),
    ]);
}

#[test]
fn a_relay_inside_the_service_is_on_with_its_connection_string_and_off_without() {
    let load = |changes: &[(&str, &str)]| load::<Config>(service(changes));
    let off = load(&[("NOTIFICATION_OUTBOX_MODE", "streams"), ("NOTIFICATION_OUTBOX_TYPES", "x")]);
    assert!(off.expect("nothing is wrong").config.relay.is_none());
    let on = load(&NEEDED[1..]).expect("nothing is wrong").config.relay.expect("is on");
    assert_eq!(on.dedupe_ttl, Duration::from_mins(2));
    let without_producer = load(&NEEDED[1..2]).expect_err("a producer is needed").to_string();
    assert!(
        without_producer.starts_with("error: NOTIFICATION_OUTBOX_PRODUCER is required"),
        "{without_producer}"
    );
}

#[test]
fn times_of_a_relay_that_is_off_are_not_checked_against_each_other() {
    let short = [("NOTIFICATION_PUBLISH_DEDUPE_TTL", "20s"), ("NOTIFICATION_OUTBOX_RETRY_BASE_DELAY", "25h")];
    load::<Config>(service(&short)).expect("no relay runs");
    let on = load::<Config>(service(&[&short, &NEEDED[1..]].concat())).expect_err("a relay runs").to_string();
    assert!(on.contains("2 times NOTIFICATION_OUTBOX_LEASE_TIMEOUT"), "{on}");
    assert!(on.contains("NOTIFICATION_OUTBOX_RETRY_MAX_DELAY is 24h"), "{on}");
}

#[test]
fn what_a_relay_cannot_work_with_is_named() {
    let long_id = "x".repeat(65);
    let long_channel = "x".repeat(64);
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("NOTIFICATION_OUTBOX_DSN", "")], "NOTIFICATION_OUTBOX_DSN is required and not set"),
        (&[("NOTIFICATION_OUTBOX_DSN", "s3cret@")], "NOTIFICATION_OUTBOX_DSN is (not shown"),
        (&[("NOTIFICATION_OUTBOX_TABLE", "Events")], "NOTIFICATION_OUTBOX_TABLE is \"Events\""),
        (&[("NOTIFICATION_OUTBOX_TABLE", "a.b.c")], "NOTIFICATION_OUTBOX_TABLE is \"a.b.c\""),
        (&[("NOTIFICATION_OUTBOX_MODE", "topics")], "NOTIFICATION_OUTBOX_MODE is \"topics\""),
        (&[("NOTIFICATION_OUTBOX_PRODUCER", "")], "NOTIFICATION_OUTBOX_PRODUCER is required and not set"),
        (&[("NOTIFICATION_OUTBOX_PRODUCER", "postman")], "no type of the catalogue allows this producer"),
        (&[("NOTIFICATION_OUTBOX_TYPES", "game.over")], "\"game.over\" is not a type of the catalogue"),
        (
            &[("NOTIFICATION_OUTBOX_TYPES", "game.turn.ready,lobby.runtime_paused_after_start")],
            "\"lobby.runtime_paused_after_start\" does not allow the producer \"game_master\"",
        ),
        (&[("NOTIFICATION_OUTBOX_MODE", "streams")], "NOTIFICATION_OUTBOX_STREAMS is required and not set"),
        (
            &[
                ("NOTIFICATION_OUTBOX_MODE", "streams"),
                ("NOTIFICATION_OUTBOX_STREAMS", "a"),
                ("NOTIFICATION_OUTBOX_TYPES", "game.turn.ready"),
            ],
            "NOTIFICATION_OUTBOX_TYPES is set, and NOTIFICATION_OUTBOX_MODE is streams",
        ),
        (&[("NOTIFICATION_OUTBOX_STREAMS", "a,two words")], "it holds white space"),
        (&[("NOTIFICATION_OUTBOX_STREAMS", "notification:route_leases:x")], "the service's own keys"),
        (&[("NOTIFICATION_OUTBOX_RELAY_ID", "web 1")], "NOTIFICATION_OUTBOX_RELAY_ID is \"web 1\""),
        (&[("NOTIFICATION_OUTBOX_RELAY_ID", &long_id)], "NOTIFICATION_OUTBOX_RELAY_ID is "),
        (&[("NOTIFICATION_OUTBOX_BATCH_SIZE", "0")], "NOTIFICATION_OUTBOX_BATCH_SIZE is \"0\""),
        (&[("NOTIFICATION_OUTBOX_RETRY_JITTER", "1.1")], "it is out of range"),
        (&[("NOTIFICATION_OUTBOX_RETRY_JITTER", "NaN")], "it is out of range"),
        (&[("NOTIFICATION_OUTBOX_RETRY_JITTER", "-0.1")], "it is out of range"),
        (&[("NOTIFICATION_OUTBOX_RETRY_JITTER", "a lot")], "not a number"),
        (&[("NOTIFICATION_OUTBOX_LISTEN_CHANNEL", &long_channel)], "NOTIFICATION_OUTBOX_LISTEN_CHANNEL is "),
        (
            &[("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", "9.999s")],
            "at least 10 times NOTIFICATION_REDIS_OPERATION_TIMEOUT",
        ),
        (
            &[("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", "61s")],
            "NOTIFICATION_PUBLISH_DEDUPE_TTL is 2m: it must be at least 2 times NOTIFICATION_OUTBOX_LEASE_TIMEOUT",
        ),
        (
            &[("NOTIFICATION_OUTBOX_RETRY_MAX_DELAY", "999ms")],
            "at least NOTIFICATION_OUTBOX_RETRY_BASE_DELAY",
        ),
    ];
    for (changes, complaint) in cases {
        let report = errors(changes);
        assert!(report.contains(complaint), "{complaint}: {report}");
        assert_eq!(report.lines().count(), 1, "{report}");
        assert!(!report.contains("s3cret"), "{report}");
    }
}

#[test]
fn a_relay_takes_what_is_at_its_limits() {
    let config = relay(&[
        ("NOTIFICATION_OUTBOX_LEASE_TIMEOUT", "10s"),
        ("NOTIFICATION_PUBLISH_DEDUPE_TTL", "20s"),
        ("NOTIFICATION_OUTBOX_RETRY_JITTER", "1"),
        ("NOTIFICATION_OUTBOX_TYPES", "game.turn.ready, game.turn.ready,game.finished"),
        ("NOTIFICATION_OUTBOX_TABLE", "shop.events"),
        ("NOTIFICATION_OUTBOX_LISTEN_CHANNEL", "Outbox Events"),
        ("NOTIFICATION_OUTBOX_RELAY_ID", "relay-1.game_db"),
    ]);
    let RelayMode::Intents { types, .. } = config.mode else { panic!("mode intents") };
    let both = ["game.turn.ready", "game.finished"].map(str::to_owned);
    assert_eq!(types, EventTypes::Only(both.into()));
    assert_eq!(config.listen_channel.as_ref().map(ChannelName::as_str), Some("Outbox Events"));
    assert_eq!(config.relay_id.map(|id| id.to_string()).as_deref(), Some("relay-1.game_db"));
}

#[test]
fn mode_streams_needs_no_producer() {
    let changes = [
        ("NOTIFICATION_OUTBOX_MODE", "Streams"),
        ("NOTIFICATION_OUTBOX_STREAMS", "orders, invoices"),
        ("NOTIFICATION_OUTBOX_PRODUCER", ""),
    ];
    let RelayMode::Streams(streams) = relay(&changes).mode else { panic!("mode streams") };
    assert_eq!(streams, ["orders", "invoices"]);
}

#[test]
fn operators_commands_need_the_connection_string_alone() {
    let dsn = ("NOTIFICATION_OUTBOX_DSN".to_owned(), "postgres://me@game-db/game".to_owned());
    let wrong = ("NOTIFICATION_OUTBOX_MODE".to_owned(), "topics".to_owned());
    load::<OutboxTable>([dsn, wrong.clone()]).expect("the connection string suffices");
    let errors = load::<OutboxTable>([wrong]).expect_err("it is needed").to_string();
    assert!(errors.starts_with("error: NOTIFICATION_OUTBOX_DSN is required and not set"), "{errors}");
}

#[test]
fn a_relay_without_a_name_has_one_of_its_own() {
    let config = relay(&[]);
    let id = config.relay_id(&ambient::SeededTokens::new(7));
    assert!(id.as_str().ends_with("-0007"), "{id}");
}
