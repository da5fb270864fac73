//! The log lines, and the data that reaches a collector.

use std::sync::Arc;

use ambient::Timestamp;
use axum::Router;
use axum::http::{Request, StatusCode};
use opentelemetry::Context;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{
    Link, Span, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry_sdk::trace::InMemorySpanExporter;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;

const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that `work` logs.
fn logged(level: LevelFilter, format: LogFormat, work: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = log_layer(Log { level, format }, move || writer.clone());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
    let bytes = lines.0.lock().expect("not poisoned").clone();
    String::from_utf8(bytes).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn a_line_is_a_json_object_with_the_fields_of_the_event_beside_the_fixed_ones() {
    let lines = logged(LevelFilter::INFO, LogFormat::Json, || {
        let span = tracing::info_span!("accept", stream = "notification:intents");
        let _entered = span.enter();
        tracing::warn!(entry_id = "1-0", error = "refused: by peer", attempts = 3, "the intent must wait");
    });
    let line: Value = serde_json::from_str(&lines.concat()).expect("one JSON object");
    let mut line = line.as_object().expect("an object").clone();

    let timestamp = line.remove("timestamp").expect("a timestamp");
    let timestamp = timestamp.as_str().expect("a string");
    assert_eq!(
        (timestamp.len(), timestamp.as_bytes()[19], timestamp.as_bytes()[26]),
        (27, b'.', b'Z'),
        "{timestamp}"
    );
    assert!(timestamp > Timestamp::UNIX_EPOCH.to_string().as_str(), "{timestamp}");
    let expected = serde_json::json!({
        "level": "WARN",
        "target": "app::telemetry::tests",
        "message": "the intent must wait",
        "entry_id": "1-0",
        "error": "refused: by peer",
        "attempts": 3,
        "span": {"name": "accept", "stream": "notification:intents"},
    });
    assert_eq!(Value::Object(line), expected);
}

#[test]
fn text_is_for_people_and_has_no_escape_codes() {
    let lines = logged(LevelFilter::INFO, LogFormat::Text, || tracing::info!(entry_id = "1-0", "accepted"));
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("accepted entry_id=\"1-0\"") && !lines[0].contains('\u{1b}'), "{lines:?}");
}

#[test]
fn the_level_holds_for_the_service_and_noisy_libraries_stay_at_warnings() {
    let lines = logged(LevelFilter::DEBUG, LogFormat::Text, || {
        tracing::debug!("ours is heard");
        tracing::trace!("too fine");
        tracing::info!(target: "hyper_util::client", "chatter");
        tracing::warn!(target: "h2::proto", "caused by a client");
        tracing::warn!(target: "hyper::proto", "theirs is heard");
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("ours is heard") && lines[1].ends_with("theirs is heard"), "{lines:?}");
    let lines =
        logged(LevelFilter::ERROR, LogFormat::Text, || tracing::warn!(target: "hyper::proto", "not heard"));
    assert_eq!(lines, Vec::<String>::new());
}

#[test]
fn an_invalid_certificate_is_logged_by_the_service_alone() {
    let lines = logged(LevelFilter::TRACE, LogFormat::Text, || {
        tracing::error!(target: "rustls_platform_verifier::verification::others", "failed to verify TLS certificate");
    });
    assert_eq!(lines, Vec::<String>::new());
}

#[test]
fn a_schema_that_is_newer_than_the_release_is_no_error() {
    let lines = logged(LevelFilter::TRACE, LogFormat::Text, || {
        tracing::error!(target: "refinery_core::traits::missing", "migration V9__x is missing from the filesystem");
        tracing::error!(target: "refinery_core::traits::divergent", "heard");
    });
    assert!(lines.len() == 1 && lines[0].ends_with("heard"), "{lines:?}");
}

#[test]
fn exporters_in_trouble_are_heard_of_once_a_minute() {
    let lines = logged(LevelFilter::INFO, LogFormat::Text, || {
        for _ in 0..5 {
            tracing::error!(target: "opentelemetry_sdk", "could not export");
            tracing::error!("our own");
        }
    });
    assert_eq!(lines.iter().filter(|line| line.contains("could not export")).count(), 1, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.contains("our own")).count(), 5, "{lines:?}");

    let (pause, start) = (Pause::default(), Instant::now());
    assert!(pause.over(start));
    assert!(!pause.over(start + EXPORTER_LOG_INTERVAL - Duration::from_nanos(1)));
    assert!(pause.over(start + EXPORTER_LOG_INTERVAL));
}

fn replica() -> ReplicaId {
    ReplicaId::parse("web-1").expect("a name")
}

#[test]
fn all_telemetry_names_the_replica() {
    let instance = resource(None, &replica()).get(&Key::new("service.instance.id"));
    assert_eq!(instance.map(|name| name.to_string()).as_deref(), Some("web-1"));
}

#[test]
fn a_chosen_service_name_comes_first_and_ours_last() {
    let name_of =
        |chosen| resource(chosen, &replica()).get(&Key::new("service.name")).map(|name| name.to_string());
    assert_eq!(name_of(Some("chosen")), Some("chosen".to_owned()));
    assert_eq!(name_of(None), Some("notification".to_owned()));
}

fn exporting(protocol: Protocol, traces: String, metrics: String) -> TelemetryConfig {
    // The HTTP client needs a provider even for plain HTTP. Another test may have installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let collector = |endpoint| Some(Collector { protocol, endpoint });
    let log = Log { level: LevelFilter::INFO, format: LogFormat::Json };
    let (traces, metrics) = (collector(traces), collector(metrics));
    let sampler = Sampler { parent_based: true, share: 1.0 };
    TelemetryConfig { log, service_name: None, traces, sampler, metrics, prometheus: true }
}

/// Records one span and one count.
fn record(telemetry: &Telemetry) {
    telemetry.traces.as_ref().expect("traces").tracer("test").in_span("a span of the test", |_| {});
    telemetry
        .metrics
        .as_ref()
        .expect("metrics")
        .meter("test")
        .u64_counter("count.of.the.test")
        .build()
        .add(1, &[]);
}

#[tokio::test]
async fn traces_and_metrics_reach_a_collector_over_http() {
    let (seen, mut requests) = mpsc::channel(8);
    let collector = Router::new().fallback(move |request: Request<axum::body::Body>| async move {
        let path = request.uri().path().to_owned();
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a short body");
        seen.send((path, String::from_utf8_lossy(&body).into_owned())).await.expect("is awaited");
        StatusCode::OK
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("bound"));
    let serving = tokio::spawn(axum::serve(listener, collector).into_future());

    let config = exporting(Protocol::Http, format!("{base}/v1/traces"), format!("{base}/v1/metrics"));
    let telemetry = Telemetry::build(&config, &replica()).expect("can be built");
    record(&telemetry);
    telemetry.shutdown(LONG).await;

    let mut bodies = std::collections::BTreeMap::new();
    for _ in 0..2 {
        let (path, body) = timeout(LONG, requests.recv()).await.expect("arrives").expect("is sent");
        bodies.insert(path, body);
    }
    assert!(bodies["/v1/traces"].contains("a span of the test"), "{bodies:?}");
    assert!(bodies["/v1/metrics"].contains("count.of.the.test"), "{bodies:?}");
    assert!(
        bodies.values().all(|body| body.contains("service.name") && body.contains(SERVICE_NAME)),
        "{bodies:?}"
    );
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_is_spoken_where_it_is_asked_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let config = exporting(Protocol::Grpc, endpoint.clone(), endpoint);
    let telemetry = Telemetry::build(&config, &replica()).expect("can be built");
    record(&telemetry);
    let stopping = tokio::spawn(telemetry.shutdown(Duration::from_secs(1)));

    let (mut stream, _) = timeout(LONG, listener.accept()).await.expect("is called").expect("a connection");
    let mut preface = [0; 14];
    timeout(LONG, stream.read_exact(&mut preface)).await.expect("speaks").expect("is open");
    assert_eq!(&preface, b"PRI * HTTP/2.0");
    drop(stream);
    drop(listener);
    timeout(LONG, stopping).await.expect("ends").expect("does not panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_delays_the_stop_no_longer_than_the_timeout() {
    for protocol in [Protocol::Http, Protocol::Grpc] {
        // The listener only listens, and never responds.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let telemetry = Telemetry::build(&exporting(protocol, endpoint.clone(), endpoint), &replica())
            .expect("can be built");
        record(&telemetry);
        let begun = Instant::now();
        telemetry.shutdown(Duration::from_millis(200)).await;
        assert!(begun.elapsed() < Duration::from_secs(4), "{protocol:?}: {:?}", begun.elapsed());
    }
}

/// The sampling decisions for five spans: without a parent, with a link to a recorded span, with a link to a
/// span that is not recorded, with a recorded parent, and with a parent that is not recorded.
fn recorded(parent_based: bool, share: f64) -> [bool; 5] {
    let remote = |flags| {
        let (trace_id, span_id) = (TraceId::from_bytes([7; 16]), SpanId::from_bytes([7; 8]));
        SpanContext::new(trace_id, span_id, flags, true, TraceState::default())
    };
    let (yes, no) = (remote(TraceFlags::SAMPLED), remote(TraceFlags::default()));
    let child = |of: &SpanContext| Context::new().with_remote_span_context(of.clone());
    let tracer = tracer_provider(Sampler { parent_based, share }).build().tracer("test");
    let is_recorded = |links: &[&SpanContext], parent: Context| {
        let links = links.iter().map(|link| Link::with_context((*link).clone())).collect();
        let builder = tracer.span_builder("a span of the test").with_links(links);
        tracer.build_with_context(builder, &parent).span_context().is_sampled()
    };
    [
        is_recorded(&[], Context::new()),
        is_recorded(&[&no, &yes], Context::new()),
        is_recorded(&[&no], Context::new()),
        is_recorded(&[&no], child(&yes)),
        is_recorded(&[&yes], child(&no)),
    ]
}

#[test]
fn a_batch_is_recorded_if_one_of_its_intents_is_and_the_sampler_is_based_on_parents() {
    assert_eq!(recorded(true, 0.0), [false, true, false, true, false]);
    assert_eq!(recorded(true, 1.0), [true, true, true, true, false]);
    assert_eq!(recorded(false, 0.0), [false; 5]);
    assert_eq!(recorded(false, 1.0), [true; 5]);
}

#[test]
fn a_span_keeps_as_many_links_as_a_batch_has() {
    let provider = tracer_provider(Sampler { parent_based: true, share: 1.0 });
    let exported = InMemorySpanExporter::default();
    let provider = provider.with_simple_exporter(exported.clone()).build();
    let link = |number: usize| {
        let span_id = SpanId::from((number + 1) as u64);
        let (trace_id, flags) = (TraceId::from_bytes([7; 16]), TraceFlags::SAMPLED);
        Link::with_context(SpanContext::new(trace_id, span_id, flags, true, TraceState::default()))
    };
    let tracer = provider.tracer("test");
    let builder = tracer.span_builder("a batch").with_links((0..workers::MAX_LINKS).map(link).collect());
    drop(tracer.build_with_context(builder, &Context::new()));
    let spans = exported.get_finished_spans().expect("they are in memory");
    assert_eq!((spans.len(), spans[0].links.len()), (1, workers::MAX_LINKS));
}
