//! The metrics that Prometheus receives from every process: those of the page, few series whatever clients
//! send, and none if metrics are disabled.

use std::collections::{BTreeMap, BTreeSet};

use harness::{Finished, HttpResponse, Proxy, Service, ServiceBuilder, request, wait_for};

use crate::api::*;
use crate::docs::{first_quoted, quoted, table};
use crate::outbox::Outbox;
use crate::state::State;
use crate::world::*;

/// The series of a scrape, and the type of each family.
#[derive(Debug, Default)]
pub(crate) struct Scrape {
    types: BTreeMap<String, String>,
    /// Name, labels and value.
    series: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Scrape {
    /// Parses the text format; the tests send no label with a quotation mark or a brace.
    fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                let before = scrape.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "{name} has two types");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
                let (name, labels) = series.split_once('{').unwrap_or((series, ""));
                let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
                let labels = labels.map(|label| {
                    let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                    (name.to_owned(), value.trim_end_matches('"').to_owned())
                });
                let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
                scrape.series.push((name.to_owned(), labels.collect(), value));
            }
        }
        scrape
    }

    pub(crate) async fn of(addr: &str) -> Self {
        let answer = scrape(addr).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4"));
        Self::parse(&answer.body)
    }

    /// The families, except that of the replica itself.
    fn families(&self) -> BTreeSet<&str> {
        self.types.keys().map(String::as_str).filter(|name| *name != "target_info").collect()
    }

    /// The family of a series: histograms have several series.
    fn family<'a>(&'a self, series: &'a str) -> &'a str {
        let parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|part| series.strip_suffix(part));
        parts.into_iter().find(|name| self.types.contains_key(*name)).unwrap_or(series)
    }

    /// The sum of the series with this name and these labels, or `None` if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let matching = self.series.iter().filter(|(found, have, _)| {
            found == name
                && labels.iter().all(|(label, value)| have.get(*label).is_some_and(|has| has == value))
        });
        let values: Vec<f64> = matching.map(|(_, _, value)| *value).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }
}

async fn scrape(addr: &str) -> HttpResponse {
    request(addr, "GET", "/metrics", &[], "").await.expect("the listener answers")
}

/// Waits until the gauges have been read, the last of them first.
async fn measured(service: &Service) -> Scrape {
    wait_for("the gauges are read", BOUND, async || {
        let scrape = Scrape::of(&service.http_addr()).await;
        scrape.sum("notification_dependency_up", &[("dependency", "redis")]).map(|_| scrape)
    })
    .await
}

/// Checks that every family with its kind, and every label, is on the page.
fn check(scrape: &Scrape) {
    let rows = table("docs/metrics.md", "metrics table");
    let page: BTreeMap<&str, &Vec<String>> = rows.iter().map(|row| (first_quoted(&row[1]), row)).collect();
    for family in scrape.families() {
        let row = page.get(family).unwrap_or_else(|| panic!("{family} is not on the page"));
        assert_eq!(scrape.types[family], row[2], "{family}");
    }
    for (name, labels, _) in scrape.series.iter().filter(|(name, ..)| name != "target_info") {
        let known: BTreeSet<String> =
            page[scrape.family(name)][4].split(", ").map(|label| label.replace('.', "_")).collect();
        let found = labels.keys().filter(|label| *label != "le");
        found.for_each(|label| assert!(known.contains(label), "{name} has the label {label}"));
    }
}

#[tokio::test]
async fn every_metric_that_a_process_shows_is_on_the_page_and_none_needs_a_collector() {
    let outbox = Outbox::new().await;
    let tokens = TokensFile::new(&outbox.world);
    let service =
        with_api(outbox.world.service(), &tokens).env("NOTIFICATION_REPLICA_ID", "web-1").start().await;
    let relay = outbox.relay().start().await;
    outbox.insert(0..3).await;
    outbox.world.settled(3).await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    outbox.world.settled(4).await;

    let shown = measured(&service).await;
    check(&shown);
    let accepted = |source| [("outcome", "accepted"), ("type", "game.turn.ready"), ("source", source)];
    assert_eq!(shown.sum("notification_intents_total", &accepted("stream")), Some(3.0));
    assert_eq!(shown.sum("notification_intents_total", &accepted("http")), Some(1.0));
    let published = [("result", "published")];
    assert_eq!(shown.sum("notification_route_attempts_total", &published), Some(16.0));
    let dead = [("result", "dead_letter"), ("channel", "push")];
    assert_eq!(shown.sum("notification_route_attempts_total", &dead), Some(0.0), "before the first one");
    for source in ["stream", "http", "batch"] {
        let none = [("outcome", "conflict"), ("producer", "game_lobby"), ("source", source)];
        assert_eq!(shown.sum("notification_intents_total", &none), Some(0.0), "before the first one");
    }
    let code = [("code", "payload_schema_violation"), ("producer", "game_lobby")];
    assert_eq!(shown.sum("notification_malformed_intents_total", &code), Some(0.0), "before the first one");
    for gauge in ["notification_dead_letters_open", "notification_channel_failing_routes"] {
        assert_eq!(shown.sum(gauge, &[("channel", "email")]), Some(0.0), "{gauge}");
    }
    assert!(shown.sum("process_memory_usage_bytes", &[]) > Some(1e6));
    assert!(shown.sum("process_cpu_time_seconds_total", &[]) > Some(0.0));
    assert_eq!(shown.sum("notification_intake_leader", &[]), Some(1.0));
    for dependency in ["postgresql", "redis"] {
        let up = shown.sum("notification_dependency_up", &[("dependency", dependency)]);
        assert_eq!(up, Some(1.0), "{dependency}");
    }
    let up_to_a_minute = [("le", "60")];
    let (bucket, count) =
        ("notification_publish_latency_seconds_bucket", "notification_publish_latency_seconds_count");
    assert_eq!((shown.sum(bucket, &up_to_a_minute), shown.sum(count, &[])), (Some(16.0), Some(16.0)));
    let replica = [("service_instance_id", "web-1"), ("service_name", "notification")];
    assert_eq!(shown.sum("target_info", &replica), Some(1.0));

    let shown = Scrape::of(&relay.http_addr()).await;
    check(&shown);
    let delivered = [("result", "delivered")];
    assert_eq!(shown.sum("notification_outbox_events_total", &delivered), Some(3.0));
}

#[tokio::test]
async fn a_state_store_is_scraped_on_an_address_of_its_own() {
    let state = State::new().await;
    let process = state.process().env("STATE_PROXY_METRICS_ADDR", "127.0.0.1:0").start().await;
    assert_eq!(state.ask("GET", "/keys/none", "").await.status, 404);
    let shown = Scrape::of(&process.http_addr()).await;
    check(&shown);
    let not_found = [("operation", "get"), ("code", "404")];
    assert_eq!(shown.sum("state_requests_total", &not_found), Some(1.0));
    assert_eq!(process.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn no_client_can_add_series() {
    const HOSTILE: u32 = 200;
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    for n in 0..HOSTILE {
        let (name, key) = (format!("hostile-{n}"), format!("k-{n}"));
        let fields: [(&[u8], &[u8]); 7] = [
            // Half of them have a known type and a known producer that do not belong together.
            (b"notification_type", if n % 2 == 0 { name.as_bytes() } else { b"geo.review_recommended" }),
            (b"producer", if n % 2 == 0 { name.as_bytes() } else { b"game_master" }),
            (b"audience_kind", b"user"),
            (b"recipient_user_ids_json", br#"["u-1"]"#),
            (b"idempotency_key", key.as_bytes()),
            (b"occurred_at_ms", b"1775121700000"),
            (b"payload_json", b"{}"),
        ];
        world.add(&fields).await;
    }
    for n in 0..20 {
        let mut intent = body(54);
        intent["notification_type"] = format!("hostile-{n}").into();
        assert_eq!(send(&service, &format!("k-{n}"), &intent).await.status, 422);
        read(&service, OPERATOR, &format!("/v1/hostile-{n}")).await;
        read(&service, OPERATOR, &format!("/v1/notifications/hostile-{n}")).await;
        ask(&service, OPERATOR, "DELETE", &format!("/hostile-{n}"), None, "").await;
        ask(&service, &format!("hostile-{n}"), "GET", "/v1/status", None, "").await;
        request(&service.api_addr(), &format!("HOSTILE{n}"), "/v1/intents", &[], "").await.ok();
    }
    wait_for("all are malformed", BOUND, async || {
        (world.number("SELECT count(*) FROM malformed_intents").await >= i64::from(HOSTILE)).then_some(())
    })
    .await;
    let text = wait_for("they are counted", BOUND, async || {
        let answer = scrape(&service.http_addr()).await;
        let malformed = [("outcome", "malformed"), ("source", "stream")];
        let counted = Scrape::parse(&answer.body).sum("notification_intents_total", &malformed);
        (counted == Some(f64::from(HOSTILE))).then_some(answer.body)
    })
    .await;
    assert!(!text.to_lowercase().contains("hostile"), "{text}");
    let shown = Scrape::parse(&text);
    check(&shown);
    let counted = |name: &str| {
        let of_name = shown.series.iter().filter(|(found, _, value)| found == name && *value > 0.0);
        of_name.count()
    };
    let intents = counted("notification_intents_total");
    assert_eq!(intents, 2, "malformed ones of the stream and of one token: {text}");
    let codes = counted("notification_malformed_intents_total");
    assert_eq!(codes, 3, "two codes of the stream and one of a token: {text}");
    let counts = |name: &str| shown.series.iter().filter(|(found, ..)| found == name).count();
    let answers = counts("http_server_request_duration_seconds_count");
    assert!((1..10).contains(&answers), "{text}");
}

#[tokio::test]
async fn without_telemetry_there_is_nothing_to_scrape() {
    let world = World::new().await;
    let service = world.service().env("OTEL_SDK_DISABLED", "true").start().await;
    assert_eq!(scrape(&service.http_addr()).await.status, 404);
}

#[tokio::test]
async fn the_page_names_the_workers_that_the_gauges_show() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).start().await;
    let shown = Scrape::parse(&scrape(&service.http_addr()).await.body);
    let gauge = "notification_worker_blocked_age_seconds";
    let of_gauge = shown.series.iter().filter(|(name, ..)| name == gauge);
    let workers: BTreeSet<&str> = of_gauge.map(|(_, labels, _)| labels["worker"].as_str()).collect();
    let page = table("docs/metrics.md", "metrics table");
    let row = page.iter().find(|row| row[0].contains("notification.worker.blocked_age"));
    let meaning = &row.expect("it is on the page")[5];
    let named: BTreeSet<&str> = quoted(meaning.split("Workers: ").nth(1).expect("it names them")).collect();
    assert_eq!(named, workers);
    assert!(workers.is_superset(&["intake", "submissions", "push", "email", "gauges"].into()), "{workers:?}");
}

/// `notification healthcheck` with these arguments, for a process at `addr`.
fn healthcheck(addr: &str, arguments: &[&'static str]) -> ServiceBuilder {
    ServiceBuilder::default()
        .arguments(["healthcheck"].into_iter().chain(arguments.iter().copied()))
        .env("NOTIFICATION_INTERNAL_HTTP_ADDR", addr)
}

#[tokio::test]
async fn the_health_check_succeeds_while_the_process_is_ready_and_fails_without_it() {
    let world = World::new().await;
    let service = world.service().start().await;
    let addr = service.http_addr();
    let port = addr.rsplit(':').next().expect("a port").to_owned();
    for (addr, arguments, word) in
        [(&addr, &[][..], "ready\n"), (&addr, &["--live"], "alive\n"), (&format!(":{port}"), &[], "ready\n")]
    {
        let finished = healthcheck(addr, arguments).run().await;
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), word), "{finished:?}");
    }
    drop(service);
    let finished = healthcheck(&addr, &[]).run().await;
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains(&format!("could not connect to {addr}")), "{finished:?}");
    let finished = healthcheck("127.0.0.1:0", &[]).run().await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
}

#[tokio::test]
async fn the_health_check_fails_for_a_process_that_is_not_ready_or_does_not_answer() {
    let world = World::new().await;
    let tokens = TokensFile::new(&world);
    let service = with_api(world.service(), &tokens).env("NOTIFICATION_API_DRAIN_DELAY", "20s").start().await;
    let addr = service.http_addr();
    service.signal("TERM");
    let finished = wait_for("the service is stopping", BOUND, async || {
        let finished = healthcheck(&addr, &[]).run().await;
        (finished.code != Some(0)).then_some(finished)
    })
    .await;
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains(r#"answered 503: {"#), "{finished:?}");
    assert!(finished.stderr.contains(r#""status":"stopping""#), "{finished:?}");
    assert_eq!(healthcheck(&addr, &["--live"]).run().await.code, Some(0));

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = silent.local_addr().expect("it is bound").to_string();
    let finished = healthcheck(&addr, &["--timeout", "1"]).run().await;
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("gave no answer within 1s"), "{finished:?}");
}

#[tokio::test]
async fn the_health_check_of_the_state_store_asks_its_socket() {
    let state = State::new().await;
    let _process = state.process().start().await;
    let check = ServiceBuilder::default()
        .arguments(["healthcheck", "--state"])
        .env("CONNECTOR_SOCKET", state.socket().to_str().expect("UTF-8"));
    let finished = check.run().await;
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "ready\n"), "{finished:?}");
}

#[tokio::test]
async fn the_state_store_is_ready_while_it_can_read_its_table_and_alive_all_the_same() {
    let state = State::new().await;
    let proxy = Proxy::start(state.database.port()).await;
    let process = state
        .process()
        .env("STATE_PROXY_PG_URL", state.database.dsn_via(proxy.port()))
        .env("STATE_PROXY_METRICS_ADDR", "127.0.0.1:0")
        .start()
        .await;
    let check = async |arguments: &[&'static str]| {
        let check = ServiceBuilder::default()
            .arguments(
                ["healthcheck", "--state", "--timeout", "60"].into_iter().chain(arguments.iter().copied()),
            )
            .env("CONNECTOR_SOCKET", state.socket().to_str().expect("UTF-8"));
        check.run().await
    };
    let is_ready = |finished: &Finished| (finished.code, &*finished.stdout) == (Some(0), "ready\n");
    assert!(is_ready(&check(&[]).await));
    proxy.cut();
    let finished = wait_for("it is not ready", BOUND, async || {
        Some(check(&[]).await).filter(|finished| !is_ready(finished))
    })
    .await;
    assert!(finished.code == Some(1) && finished.stderr.contains("answered 503"), "{finished:?}");
    let alive = check(&["--live"]).await;
    assert_eq!((alive.code, &*alive.stdout), (Some(0), "alive\n"), "{alive:?}");
    assert_eq!(process.get("/readyz").await.0, 200, "the listener for Prometheus asks no table");
    proxy.heal();
    wait_for("it is ready again", BOUND, async || is_ready(&check(&[]).await).then_some(())).await;
}
