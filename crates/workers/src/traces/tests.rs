//! What the spans of an intent and of a batch say.

use std::sync::Mutex;

use domain::record::Content;
use opentelemetry::Value;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

use super::*;
use crate::fixtures::{now, route};
use crate::metrics::{HTTP, STREAM};

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const REQUEST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Clone, Debug, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().expect("not poisoned").extend(batch);
        Ok(())
    }
}

/// The spans that `work` makes; all traces are recorded.
fn spans_of(work: impl FnOnce(&Traces)) -> Vec<SpanData> {
    let exported = Exported::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exported.clone())
        .with_max_links_per_span(u32::MAX)
        .build();
    let streams = TracedStreams {
        intents: "in".to_owned(),
        push: "out:push".to_owned(),
        email: "out:email".to_owned(),
    };
    work(&Traces::new(BoxedTracer::new(Box::new(provider.tracer("test"))), streams));
    exported.0.lock().expect("not poisoned").clone()
}

fn accepted(source: &'static str, trace_id: &'static str) -> IntentSpan<'static> {
    IntentSpan {
        started: now(),
        ended: now() + Duration::from_millis(7),
        source,
        message_id: Some("1-0".to_owned()),
        trace_id,
        request_trace: None,
        notification_type: "game.finished",
        outcome: "accepted",
        failed: false,
    }
}

fn attributes(span: &SpanData) -> Vec<(String, Value)> {
    let mut attributes: Vec<_> =
        span.attributes.iter().map(|it| (it.key.to_string(), it.value.clone())).collect();
    attributes.sort_by(|(left, _), (right, _)| left.cmp(right));
    attributes
}

fn texts<const N: usize>(expected: [(&str, &'static str); N]) -> Vec<(String, Value)> {
    expected.map(|(name, value)| (name.to_owned(), Value::from(value))).into()
}

fn parent(text: &str) -> TraceParent {
    TraceParent::parse(text).expect("a traceparent")
}

#[test]
fn an_intent_of_the_stream_continues_the_trace_of_its_producer() {
    let spans = spans_of(|traces| traces.intent(&accepted(STREAM, GIVEN)));
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(span.name, "process in");
    assert_eq!(span.span_kind, SpanKind::Consumer);
    assert_eq!(span.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(span.parent_span_id.to_string(), "00f067aa0ba902b7");
    assert!(span.parent_span_is_remote);
    assert_eq!(span.end_time, span.start_time + Duration::from_millis(7));
    assert_eq!(span.status, Status::Unset);
    let expected = texts([
        ("messaging.destination.name", "in"),
        ("messaging.message.id", "1-0"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.system", "redis"),
        ("notification.outcome", "accepted"),
        ("notification.source", "stream"),
        ("notification.type", "game.finished"),
    ]);
    assert_eq!(attributes(span), expected);
}

#[test]
fn a_trace_id_that_is_no_traceparent_begins_no_trace_of_its_own() {
    for trace_id in ["", "lobby-7c1e", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"] {
        let spans = spans_of(|traces| traces.intent(&accepted(STREAM, trace_id)));
        assert_eq!(spans.len(), 1, "{trace_id}");
        assert_eq!(spans[0].parent_span_id, SpanId::INVALID, "{trace_id}");
        assert!(spans[0].span_context.is_valid(), "{trace_id}");
    }
}

#[test]
fn a_trace_that_the_producer_does_not_record_is_not_recorded() {
    assert_eq!(spans_of(|traces| traces.intent(&accepted(STREAM, UNSAMPLED))).len(), 0);
}

#[test]
fn an_intent_by_http_continues_the_trace_of_its_request_unless_it_names_its_own() {
    let request_trace = Some(parent(REQUEST));
    let spans = spans_of(|traces| {
        traces.intent(&IntentSpan { request_trace, ..accepted(HTTP, "") });
        traces.intent(&IntentSpan { request_trace, ..accepted(HTTP, GIVEN) });
        traces.intent(&IntentSpan { request_trace, ..accepted(HTTP, REQUEST) });
    });
    let seen: Vec<_> = spans
        .iter()
        .map(|span| {
            let links: Vec<_> =
                span.links.iter().map(|link| link.span_context.span_id().to_string()).collect();
            (span.name.as_ref(), span.parent_span_id.to_string(), links)
        })
        .collect();
    let (request, given) = ("b7ad6b7169203331".to_owned(), "00f067aa0ba902b7".to_owned());
    assert_eq!(
        seen,
        [
            ("process intent", request.clone(), vec![]),
            ("process intent", given, vec![request.clone()]),
            ("process intent", request, vec![]),
        ]
    );
}

#[test]
fn an_intent_that_the_service_could_not_accept_is_an_error() {
    let failed = IntentSpan { outcome: "unavailable", failed: true, ..accepted(HTTP, "") };
    let spans = spans_of(|traces| traces.intent(&failed));
    assert_eq!(spans[0].status, Status::error("unavailable"));
    assert!(attributes(&spans[0]).contains(&("error.type".to_owned(), "unavailable".into())));
}

/// A route of the record with this number, with this trace id.
fn traced(number: u64, trace_id: &str) -> LiveRoute {
    let route = route(number, 0);
    let content = Content { trace_id: trace_id.to_owned(), ..(*route.content).clone() };
    LiveRoute { content: Arc::new(content), ..route }
}

fn publish(traces: &Traces, routes: &[LiveRoute], failed: &[&'static str]) {
    let span = traces.begin_publish(Channel::Email, now, routes.iter()).expect("traces are on");
    span.end(now() + Duration::from_millis(3), routes.len() - failed.len(), failed);
}

#[test]
fn a_batch_is_linked_to_the_context_of_each_of_its_intents_once() {
    let first = traced(1, GIVEN);
    let second_of_first = LiveRoute { content: Arc::clone(&first.content), ..route(2, 0) };
    let routes =
        [first, second_of_first, traced(3, ""), traced(4, UNSAMPLED), traced(5, REQUEST), traced(6, GIVEN)];
    let spans = spans_of(|traces| publish(traces, &routes, &["mail_stream_publish_failed"]));
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((span.name.as_ref(), &span.span_kind), ("publish out:email", &SpanKind::Producer));
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    let links: Vec<_> = span.links.iter().map(|link| link.span_context.span_id().to_string()).collect();
    assert_eq!(links, ["00f067aa0ba902b7", "b7ad6b7169203331"]);
    let mut expected = texts([
        ("error.type", "mail_stream_publish_failed"),
        ("messaging.destination.name", "out:email"),
        ("messaging.operation.name", "publish"),
        ("messaging.operation.type", "send"),
        ("messaging.system", "redis"),
        ("notification.channel", "email"),
    ]);
    let counts = [
        ("messaging.batch.message_count", 6),
        ("notification.routes.failed", 1),
        ("notification.routes.published", 5),
    ];
    expected.extend(counts.map(|(name, count)| (name.to_owned(), Value::I64(count))));
    expected.sort_by(|(left, _), (right, _)| left.cmp(right));
    assert_eq!(attributes(span), expected);
}

#[test]
fn a_batch_has_a_bounded_number_of_links() {
    let trace = |number: usize| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01", number + 1);
    let routes: Vec<_> = (0..=MAX_LINKS).map(|number| traced(number as u64, &trace(number))).collect();
    let spans = spans_of(|traces| publish(traces, &routes, &[]));
    assert_eq!(spans[0].links.len(), MAX_LINKS);
}

#[test]
fn nothing_is_made_where_traces_are_off() {
    let off = Traces::default();
    assert!(!off.is_on());
    off.intent(&accepted(STREAM, GIVEN));
    let read_clock = || panic!("the time is not needed");
    assert!(off.begin_publish(Channel::Push, read_clock, [traced(1, GIVEN)].iter()).is_none());
}
