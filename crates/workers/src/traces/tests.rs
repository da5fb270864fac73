//! The content of the spans of an intent and of a batch.

use domain::record::RecordContent;
use opentelemetry::Value;
use opentelemetry_sdk::trace::SpanData;

use super::*;
use crate::fixtures::{acknowledged, now, recorded_traces, route};
use crate::metrics::{HTTP, STREAM};

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const REQUEST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Returns the spans that `work` creates. All traces are recorded.
fn spans_of(work: impl FnOnce(&Traces)) -> Vec<SpanData> {
    let (traces, exporter) = recorded_traces();
    work(&traces);
    exporter.get_finished_spans().expect("they are in memory")
}

fn accepted(source: &'static str, trace_id: &'static str) -> IntentSpan<'static> {
    IntentSpan {
        started: now(),
        ended: now() + Duration::from_millis(7),
        source,
        id: Some("1-0".to_owned()),
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
fn an_intent_by_http_has_the_id_of_its_notification_and_no_attribute_of_messaging() {
    let spans = spans_of(|traces| traces.intent(&accepted(HTTP, GIVEN)));
    let expected = texts([
        ("notification.id", "1-0"),
        ("notification.outcome", "accepted"),
        ("notification.source", "http"),
        ("notification.type", "game.finished"),
    ]);
    assert_eq!(attributes(&spans[0]), expected);
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
    let content = RecordContent { trace_id: trace_id.to_owned(), ..(*route.content).clone() };
    LiveRoute { content: Arc::new(content), ..route }
}

fn published(route: &LiveRoute) -> Published {
    Published { key: route.key.clone(), version: route.version, entry: acknowledged("1-0") }
}

fn failed(route: &LiveRoute) -> Failed {
    Failed {
        key: route.key.clone(),
        version: route.version,
        channel: Channel::Email,
        attempt_count: 1,
        retry_at: None,
        classification: "mail_stream_publish_failed",
        message: String::new(),
    }
}

/// Creates the span of a chunk in which the first `first` routes were published and `others` failed.
fn publish(traces: &Traces, chunk: &[LiveRoute], first: usize, others: &[LiveRoute]) {
    let (done, failures): (Vec<_>, Vec<_>) =
        (chunk[..first].iter().map(published).collect(), others.iter().map(failed).collect());
    let span = PublishSpan::of(Channel::Email, now(), chunk, &done, &failures).expect("some are done");
    traces.publish(span, now() + Duration::from_millis(3));
}

#[test]
fn a_batch_is_linked_to_the_context_of_each_of_its_intents_once() {
    let first = traced(1, GIVEN);
    let second_of_first = LiveRoute { content: Arc::clone(&first.content), ..route(2, 0) };
    let routes =
        [first, second_of_first, traced(3, ""), traced(4, UNSAMPLED), traced(5, REQUEST), traced(6, GIVEN)];
    let spans = spans_of(|traces| publish(traces, &routes, 5, &routes[5..]));
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
    let spans = spans_of(|traces| publish(traces, &routes, routes.len(), &[]));
    assert_eq!(spans[0].links.len(), MAX_LINKS);
}

#[test]
fn a_batch_is_that_of_the_routes_that_were_published_or_failed() {
    let routes = [traced(1, GIVEN), traced(2, REQUEST)];
    assert!(PublishSpan::of(Channel::Push, now(), &routes, &[], &[]).is_none());
    let spans = spans_of(|traces| publish(traces, &routes, 0, &routes[1..]));
    let links: Vec<_> = spans[0].links.iter().map(|link| link.span_context.span_id().to_string()).collect();
    assert_eq!(links, ["b7ad6b7169203331"]);
    let count = ("messaging.batch.message_count".to_owned(), Value::I64(1));
    assert!(attributes(&spans[0]).contains(&count), "{:?}", spans[0].attributes);
}

#[test]
fn nothing_is_made_where_traces_are_off() {
    let off = Traces::default();
    assert!(!off.is_on());
    off.intent(&accepted(STREAM, GIVEN));
    publish(&off, &[traced(1, GIVEN)], 1, &[]);
}
