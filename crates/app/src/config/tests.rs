//! The configuration from an operator's point of view.

mod api;
mod redis;
mod secrets;

use std::collections::BTreeSet;
use std::io::Write;

use super::knobs::{KNOBS, STATE};
use super::*;

const REQUIRED: [(&str, &str); 3] = [
    ("NOTIFICATION_REDIS_MASTER_ADDR", "redis:6379"),
    ("NOTIFICATION_POSTGRES_PRIMARY_DSN", "postgres://me:s3cret@db/galaxy"),
    ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users:8080"),
];

/// The required variables, overridden by `changes`.
fn vars(changes: &[(&str, &str)]) -> Vec<(String, String)> {
    let kept = REQUIRED.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    kept.chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn loaded(changes: &[(&str, &str)]) -> Loaded<Config> {
    load::<Config>(vars(changes)).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(changes: &[(&str, &str)]) -> String {
    load::<Config>(vars(changes)).expect_err("something is wrong").to_string()
}

fn effective(loaded: &Loaded<Config>, name: &str) -> String {
    let line = loaded.effective.iter().find(|(known, _)| known == name);
    line.unwrap_or_else(|| panic!("{name} is not shown")).1.clone()
}

#[test]
fn users_in_the_own_schema_need_no_user_service() {
    let state = ("NOTIFICATION_USER_DIRECTORY", "state");
    let url = "NOTIFICATION_USER_SERVICE_BASE_URL";
    for given in ["", "http://users:8080"] {
        assert_eq!(loaded(&[state, (url, given)]).config.user_directory, UserDirectory::State);
    }
    assert!(errors(&[state, (url, "users:8080")]).contains(url), "a wrong value is reported all the same");
    let missing = errors(&[("NOTIFICATION_USER_DIRECTORY", "http"), (url, "")]);
    assert!(missing.starts_with(&format!("error: {url} is required and not set")), "{missing}");
    assert!(errors(&[("NOTIFICATION_USER_DIRECTORY", "ldap")]).contains("NOTIFICATION_USER_DIRECTORY"));
    assert_eq!(effective(&loaded(&[]), "NOTIFICATION_USER_DIRECTORY"), "http");
}

#[test]
fn three_variables_are_enough() {
    let Loaded { config, warnings, .. } = loaded(&[]);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.redis.topology.to_string(), "redis:6379");
    assert_eq!(config.http.addr.to_string(), ":8092");
    assert_eq!(config.intents.stream, "notification:intents");
    assert_eq!(config.intents.batch_size, 512);
    assert_eq!(
        config.outbound.gateway,
        OutboundStream { key: "gateway:client-events".to_owned(), max_len: None }
    );
    assert_eq!((config.routes.budgets.push, config.routes.budgets.email), (3, 7));
    assert_eq!(config.retention.record, Duration::from_hours(720));
    assert_eq!(config.audience.locales, ["en"]);
    assert_eq!(config.telemetry.traces, None);
}

#[test]
fn every_variable_is_read_and_shown_once_in_the_order_of_the_page() {
    let loaded = loaded(&[]);
    let names = loaded.effective.iter().map(|(name, _)| name.as_str());
    let knobs = names.filter(|name| !name.starts_with("NOTIFICATION_ADMIN_EMAILS_"));
    let listed = KNOBS.iter().filter(|knob| knob.section != STATE);
    assert_eq!(knobs.collect::<Vec<_>>(), listed.map(|knob| knob.name).collect::<Vec<_>>());
}

#[test]
fn what_is_shown_is_the_same_configuration_again_but_for_secrets() {
    let changes = [("NOTIFICATION_RECORD_RETENTION", "1000h90m"), ("OTEL_TRACES_EXPORTER", "otlp")];
    let first = loaded(&changes).effective;
    let again = first.iter().filter(|(_, value)| !value.contains("****")).cloned();
    let second = load::<Config>(again.chain(vars(&[]).into_iter().filter(|(name, _)| name.contains("DSN"))));
    assert_eq!(second.expect("loads").effective, first);
}

#[test]
fn everything_that_is_wrong_is_reported_at_once() {
    let report = errors(&[
        ("NOTIFICATION_REDIS_MASTER_ADDR", ""),
        ("NOTIFICATION_INTERNAL_HTTP_ADDR", "8092"),
        ("NOTIFICATION_ROUTE_LEASE_TTL", "1500"),
        ("NOTIFICATION_PUSH_MAX_ATTEMPTS", "0"),
        ("NOTIFICATION_LOG_LEVEL", "verbose"),
        ("NOTIFICATION_RECORD_TTL", "720h"),
        ("NOTIFICATION_REDIS_MASTER_ADR", "redis:6379"),
    ]);
    let expected = "\
error: NOTIFICATION_REDIS_MASTER_ADDR is required and not set, and neither is NOTIFICATION_REDIS_SENTINEL_ADDRS nor NOTIFICATION_REDIS_CLUSTER_ADDRS: set one of them
error: NOTIFICATION_INTERNAL_HTTP_ADDR is \"8092\": it has no port; it takes host:port, or :port for every interface; port 0 picks a free one
error: NOTIFICATION_PUSH_MAX_ATTEMPTS is \"0\": it is too small; it takes a whole number from 1 to 100
error: NOTIFICATION_ROUTE_LEASE_TTL is \"1500\": 1500 has no unit; did you mean 1500ms or 1500s?; it takes a duration from 1ms to 1h
error: NOTIFICATION_LOG_LEVEL is \"verbose\": it is not known; it takes one of error, warn, info, debug, trace
error: NOTIFICATION_RECORD_TTL is retired: set NOTIFICATION_RECORD_RETENTION instead
warning: NOTIFICATION_REDIS_MASTER_ADR is not a variable of this service and has no effect; did you mean NOTIFICATION_REDIS_MASTER_ADDR?";
    assert_eq!(report, expected);
}

#[test]
fn every_retired_name_stops_the_start_and_names_what_replaces_it() {
    for (name, replacement) in [
        ("NOTIFICATION_REDIS_ADDR", "NOTIFICATION_REDIS_MASTER_ADDR"),
        ("NOTIFICATION_REDIS_USERNAME", "NOTIFICATION_REDIS_PASSWORD"),
        ("NOTIFICATION_REDIS_TLS_ENABLED", "rediss://"),
        ("NOTIFICATION_RECORD_TTL", "NOTIFICATION_RECORD_RETENTION"),
        ("NOTIFICATION_DEAD_LETTER_TTL", "NOTIFICATION_RECORD_RETENTION"),
        ("NOTIFICATION_DEAD_LETTER_TTL", "NOTIFICATION_MALFORMED_INTENT_RETENTION"),
    ] {
        let report = errors(&[(name, "1h")]);
        assert!(
            report.starts_with(&format!("error: {name} is retired: ")) && report.contains(replacement),
            "{report}"
        );
        assert_eq!(loaded(&[(name, "")]).warnings, Vec::<String>::new());
    }
}

#[test]
fn times_and_names_that_cannot_work_together_are_wrong_and_all_are_named() {
    let cases = [
        ("NOTIFICATION_ROUTE_LEASE_TTL", "1.999s", "NOTIFICATION_REDIS_OPERATION_TIMEOUT"),
        ("NOTIFICATION_ROUTE_BACKOFF_MIN", "5m1s", "NOTIFICATION_ROUTE_BACKOFF_MAX"),
        ("NOTIFICATION_RECORD_RETENTION", "167h59m", "NOTIFICATION_IDEMPOTENCY_TTL"),
        ("NOTIFICATION_PUBLISH_DEDUPE_TTL", "19.999s", "NOTIFICATION_ROUTE_LEASE_TTL"),
        ("NOTIFICATION_PUBLISH_DEDUPE_TTL", "19.999s", "NOTIFICATION_POSTGRES_OPERATION_TIMEOUT"),
        ("NOTIFICATION_PUBLISH_DEDUPE_TTL", "19.999s", "10 times NOTIFICATION_REDIS_OPERATION_TIMEOUT"),
        (
            "NOTIFICATION_INTENTS_STREAM",
            "mail:delivery_commands",
            "NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM",
        ),
        ("NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM", "notification:intents", "NOTIFICATION_INTENTS_STREAM"),
        (
            "NOTIFICATION_GATEWAY_CLIENT_EVENTS_STREAM",
            "mail:delivery_commands",
            "NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM",
        ),
    ];
    for (name, value, other) in cases {
        let report = errors(&[(name, value)]);
        assert_eq!(report.lines().count(), 1, "{report}");
        assert!(report.contains(name) && report.contains(other) && report.contains(value), "{report}");
    }
}

#[test]
fn times_at_their_limits_work() {
    loaded(&[
        ("NOTIFICATION_ROUTE_LEASE_TTL", "2s"),
        ("NOTIFICATION_PUBLISH_DEDUPE_TTL", "17s"),
        ("NOTIFICATION_ROUTE_BACKOFF_MIN", "5m"),
        ("NOTIFICATION_RECORD_RETENTION", "168h"),
    ]);
}

#[test]
fn times_are_checked_even_where_something_else_of_its_section_is_missing() {
    let report = errors(&[("NOTIFICATION_REDIS_MASTER_ADDR", ""), ("NOTIFICATION_ROUTE_LEASE_TTL", "1s")]);
    assert_eq!(report.lines().count(), 2, "{report}");
}

#[test]
fn the_intents_stream_is_trimmed_only_if_asked_for() {
    assert_eq!(loaded(&[]).config.intents.stream_retention, None);
    let asked = loaded(&[("NOTIFICATION_INTENTS_STREAM_RETENTION", "24h")]).config;
    assert_eq!(asked.intents.stream_retention, Some(Duration::from_hours(24)));
}

#[test]
fn values_outside_their_bounds_are_refused() {
    for (name, value) in [
        ("NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT", "0"),
        ("NOTIFICATION_INTENTS_READ_BLOCK_TIMEOUT", "5001ms"),
        ("NOTIFICATION_CLEANUP_INTERVAL", "-1h"),
        ("NOTIFICATION_POSTGRES_MAX_OPEN_CONNS", "3"),
        ("NOTIFICATION_INTENTS_BATCH_SIZE", "4097"),
        ("NOTIFICATION_REDIS_DB", "+1"),
        ("NOTIFICATION_REDIS_DB", "99999999999999999999"),
        ("NOTIFICATION_INTENTS_STREAM", "notification:route_leases:x"),
        ("NOTIFICATION_MAIL_DELIVERY_COMMANDS_STREAM", "notification:leader_changes:x"),
        ("NOTIFICATION_INTENTS_STREAM", "notification:installations:x"),
        ("NOTIFICATION_INTENTS_STREAM", "two words"),
        ("NOTIFICATION_REPLICA_ID", "web 1"),
        ("NOTIFICATION_INTENTS_STREAM_RETENTION", "87601h"),
        ("NOTIFICATION_USER_SERVICE_BASE_URL", "users:8080"),
        ("NOTIFICATION_USER_SERVICE_BASE_URL", "http://users?x=1"),
        ("NOTIFICATION_USER_SERVICE_BASE_URL", "ftp://users"),
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
        ("OTEL_TRACES_SAMPLER_ARG", "10%"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
    ] {
        let report = errors(&[(name, value)]);
        assert!(report.starts_with(&format!("error: {name} is {value:?}: ")), "{report}");
        assert_eq!(report.lines().count(), 1, "{report}");
    }
}

#[test]
fn each_command_needs_only_what_it_uses() {
    let only = |name: &'static str| vars(&[]).into_iter().filter(move |(known, _)| known == name);
    let postgres = only("NOTIFICATION_POSTGRES_PRIMARY_DSN");
    let redis = only("NOTIFICATION_REDIS_MASTER_ADDR");
    let missing = |errors: ConfigErrors| -> BTreeSet<String> {
        errors.problems.iter().map(|problem| problem.variable().to_owned()).collect()
    };

    let elsewhere = [("NOTIFICATION_LOG_LEVEL".to_owned(), "verbose".to_owned())];
    load::<Postgres>(postgres.clone().chain(elsewhere)).expect("migrate needs PostgreSQL only");
    load::<SendConfig>(redis.clone()).expect("send needs Redis only");
    assert_eq!(
        missing(load::<Postgres>(redis).expect_err("no PostgreSQL")),
        [REQUIRED[1].0.to_owned()].into()
    );
    assert_eq!(
        missing(load::<SendConfig>(postgres).expect_err("no Redis")),
        [REQUIRED[0].0.to_owned()].into()
    );
    let all: BTreeSet<String> = REQUIRED.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(missing(load::<Config>([]).expect_err("nothing is set")), all);
}

#[test]
fn an_unknown_variable_is_a_warning_and_only_near_names_are_suggested() {
    let warnings = loaded(&[
        ("NOTIFICATION_ROUTE_LEASE_TTL_", "5s"),
        ("NOTIFICATION_ZZZ", "1"),
        ("notification_redis_db", "7"),
        ("NOTIFICATIONS", "1"),
        ("NOTIFICATION_EMPTY", ""),
        ("PATH", "/bin"),
    ]);
    assert_eq!(
        warnings.warnings,
        [
            "NOTIFICATION_ROUTE_LEASE_TTL_ is not a variable of this service and has no effect; did you mean NOTIFICATION_ROUTE_LEASE_TTL?",
            "NOTIFICATION_ZZZ is not a variable of this service and has no effect",
        ]
    );
    assert_eq!(warnings.config.redis.db, 0);
}

#[test]
fn administrators_are_read_for_the_types_they_may_receive() {
    let Loaded { config, warnings, effective, .. } = loaded(&[
        (
            "NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED",
            "ops@example.com, ops@example.com,b@example.com",
        ),
        ("NOTIFICATION_ADMIN_EMAILS_GAME_TURN_READY", "ops@example.com"),
        ("NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMENDED", "ops@example.com"),
    ]);
    assert_eq!(config.audience.admin_emails.len(), 1);
    assert_eq!(config.audience.admin_emails["geo.review_recommended"], ["ops@example.com", "b@example.com"]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[1].ends_with("did you mean NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED?"),
        "{warnings:?}"
    );
    let line = (
        "NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED".to_owned(),
        "ops@example.com,b@example.com".to_owned(),
    );
    assert!(effective.contains(&line), "{effective:?}");

    let report = errors(&[("NOTIFICATION_ADMIN_EMAILS_GEO_REVIEW_RECOMMENDED", "ops@example.com,ops")]);
    assert!(report.contains("holds \"ops\", which is not one name, one @ and one host"), "{report}");
}

#[test]
fn a_catalogue_that_cannot_be_used_is_named_with_its_path_and_reason() {
    let missing = errors(&[("NOTIFICATION_CATALOG_PATH", "/nowhere/types.toml")]);
    assert!(missing.contains("/nowhere/types.toml") && missing.contains("cannot be read"), "{missing}");

    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(b"\n\nthis is no TOML\n").expect("it can be written");
    let path = file.path().to_str().expect("a path in UTF-8");
    let garbled = errors(&[("NOTIFICATION_CATALOG_PATH", path)]);
    assert_eq!(garbled.lines().count(), 1, "{garbled}");
    assert!(garbled.contains(path) && garbled.contains("line 3"), "{garbled}");
}

#[test]
fn certificates_that_cannot_be_read_are_a_problem_of_the_configuration() {
    let dsn = "postgres://me:s3cret@db/x?sslmode=require&sslrootcert=/nowhere/root.pem";
    for name in ["NOTIFICATION_POSTGRES_PRIMARY_DSN", "NOTIFICATION_POSTGRES_REPLICA_DSNS"] {
        let report = errors(&[(name, dsn)]);
        assert!(
            report.contains(name) && report.contains("sslrootcert /nowhere/root.pem cannot be read"),
            "{report}"
        );
        assert!(report.contains("No such file") && !report.contains("s3cret"), "{report}");
    }
}

#[test]
fn the_collector_of_a_signal_is_its_own_else_the_common_one_else_the_usual_one() {
    let collectors = |changes: &[(&str, &str)]| {
        let both = [("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_METRICS_EXPORTER", "otlp")];
        let telemetry = loaded(&[&both, changes].concat()).config.telemetry;
        [telemetry.traces, telemetry.metrics].map(|signal| signal.map(|it| (it.protocol, it.endpoint)))
    };
    let at = |protocol, endpoint: &str| Some((protocol, endpoint.to_owned()));
    assert_eq!(
        collectors(&[]),
        [
            at(Protocol::Http, "http://localhost:4318/v1/traces"),
            at(Protocol::Http, "http://localhost:4318/v1/metrics")
        ]
    );
    assert_eq!(
        collectors(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel/base/"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:1/x"),
        ]),
        [at(Protocol::Http, "http://traces:1/x"), at(Protocol::Grpc, "https://otel/base/")]
    );
    assert_eq!(
        collectors(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]),
        [at(Protocol::Grpc, "http://localhost:4317"), at(Protocol::Grpc, "http://localhost:4317")]
    );
    assert_eq!(collectors(&[("OTEL_SDK_DISABLED", "TRUE")]), [None, None]);
}

#[test]
fn a_sampler_is_a_share_of_the_traces_that_begin_here_and_a_rule_for_the_others() {
    let arg = ("OTEL_TRACES_SAMPLER_ARG", "0.1");
    for (name, parent_based, share) in [
        ("always_on", false, 1.0),
        ("always_off", false, 0.0),
        ("traceidratio", false, 0.1),
        ("parentbased_always_on", true, 1.0),
        ("parentbased_always_off", true, 0.0),
        ("parentbased_traceidratio", true, 0.1),
    ] {
        let sampler = loaded(&[("OTEL_TRACES_SAMPLER", name), arg]).config.telemetry.sampler;
        assert_eq!(sampler, Sampler { parent_based, share }, "{name}");
    }
    assert_eq!(loaded(&[]).config.telemetry.sampler, Sampler { parent_based: true, share: 1.0 });
    let all = loaded(&[("OTEL_TRACES_SAMPLER", "traceidratio")]).config.telemetry.sampler;
    assert_eq!(all, Sampler { parent_based: false, share: 1.0 });
}
