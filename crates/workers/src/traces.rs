//! Spans for a trace collector: one for each intent that has an outcome, one for each batch of routes that
//! were published or failed.
//!
//! A span is created when its work has ended, so that nothing is kept for it meanwhile, and nothing is done
//! if traces are off. Names and attributes follow OpenTelemetry's semantic conventions for messaging (ADR
//! 0043). A span never contains a payload, a user id or an address.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambient::Timestamp;
use domain::ports::{Failed, Published};
use domain::route::{Channel, LiveRoute, RouteKey};
use domain::trace_parent::TraceParent;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{
    Link, Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer,
};
use opentelemetry::{Context, KeyValue, StringValue};

/// The most contexts that one batch is linked to. If there are more, the first ones are linked. By default, a
/// batch has at most as many routes.
pub const MAX_LINKS: usize = 512;

/// The names of the streams, as spans contain them.
#[derive(Clone, Debug)]
pub struct TracedStreams {
    /// The intents stream.
    pub intents: String,
    /// The outbound stream of push.
    pub push: String,
    /// The outbound stream of email.
    pub email: String,
}

/// Creates the spans of the workers. The default creates none.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Tracing>>);

#[derive(Debug)]
struct Tracing {
    tracer: BoxedTracer,
    intents: TracedStream,
    push: TracedStream,
    email: TracedStream,
}

/// A stream as an attribute value, and the name of the spans about it.
#[derive(Debug)]
struct TracedStream {
    stream: StringValue,
    span: String,
}

impl TracedStream {
    fn new(operation: &str, stream: String) -> Self {
        let span = format!("{operation} {stream}");
        Self { stream: StringValue::from(Arc::<str>::from(stream)), span }
    }
}

/// An intent that has an outcome.
#[derive(Debug)]
pub(crate) struct IntentSpan<'a> {
    /// The time at which it was read or submitted.
    pub(crate) started: Timestamp,
    /// The time at which its outcome was certain.
    pub(crate) ended: Timestamp,
    /// The source of the intent: `stream`, `http` or `batch`.
    pub(crate) source: &'static str,
    /// The id of its entry in the stream; over HTTP the id of its notification.
    pub(crate) id: Option<String>,
    /// The field `trace_id`.
    pub(crate) trace_id: &'a str,
    /// The trace of the request that contained it.
    pub(crate) request_trace: Option<TraceParent>,
    /// A type of the catalogue; empty if it is unknown.
    pub(crate) notification_type: &'a str,
    /// The outcome, as in the metric.
    pub(crate) outcome: &'static str,
    /// True if the outcome is a failure of this service.
    pub(crate) failed: bool,
}

/// A batch of routes, each of which was published or failed.
#[derive(Debug)]
pub(crate) struct PublishSpan {
    /// The channel of its outbound stream.
    channel: Channel,
    /// The time at which the batch began.
    started: Timestamp,
    /// The contexts of its intents whose traces are recorded, each once.
    contexts: Vec<TraceParent>,
    /// The number of routes that were published.
    published: usize,
    /// The classifications of the attempts that failed.
    failed: Vec<&'static str>,
}

impl Traces {
    /// Creates spans with this tracer.
    pub fn new(tracer: BoxedTracer, streams: TracedStreams) -> Self {
        let TracedStreams { intents, push, email } = streams;
        Self(Some(Arc::new(Tracing {
            tracer,
            intents: TracedStream::new("process", intents),
            push: TracedStream::new("publish", push),
            email: TracedStream::new("publish", email),
        })))
    }

    /// True if spans are created.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Creates the span of an intent. It continues the trace of the field `trace_id`, or else that of the
    /// request. If both exist and differ, it is linked to that of the request.
    pub(crate) fn intent(&self, span: &IntentSpan<'_>) {
        let Some(tracing) = &self.0 else { return };
        let given = TraceParent::parse(span.trace_id);
        let parent = given.or(span.request_trace);
        let linked = span.request_trace.filter(|request| Some(*request) != parent);
        let mut attributes = vec![
            KeyValue::new("notification.source", span.source),
            KeyValue::new("notification.outcome", span.outcome),
        ];
        // A request is not a message: only entries have attributes of messaging.
        let name = if span.source == crate::metrics::STREAM {
            attributes.extend([
                KeyValue::new("messaging.system", "redis"),
                KeyValue::new("messaging.operation.name", "process"),
                KeyValue::new("messaging.operation.type", "process"),
                KeyValue::new("messaging.destination.name", tracing.intents.stream.clone()),
            ]);
            attributes.extend(span.id.clone().map(|id| KeyValue::new("messaging.message.id", id)));
            Cow::Owned(tracing.intents.span.clone())
        } else {
            attributes.extend(span.id.clone().map(|id| KeyValue::new("notification.id", id)));
            Cow::Borrowed("process intent")
        };
        if !span.notification_type.is_empty() {
            attributes.push(KeyValue::new("notification.type", span.notification_type.to_owned()));
        }
        let builder = tracing
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Consumer)
            .with_start_time(system_time(span.started))
            .with_attributes(attributes)
            .with_links(linked.map(link).into_iter().collect());
        let parent = parent
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(context(parent)));
        let mut made = tracing.tracer.build_with_context(builder, &parent);
        if span.failed {
            made.set_attribute(KeyValue::new("error.type", span.outcome));
            made.set_status(Status::error(span.outcome));
        }
        made.end_with_timestamp(system_time(span.ended));
    }

    /// Creates the span of a batch whose completions are committed at `ended`.
    pub(crate) fn publish(&self, span: PublishSpan, ended: Timestamp) {
        let Some(tracing) = &self.0 else { return };
        let PublishSpan { channel, started, contexts, published, failed } = span;
        let of_channel = match channel {
            Channel::Push => &tracing.push,
            Channel::Email => &tracing.email,
        };
        let attributes = vec![
            KeyValue::new("messaging.system", "redis"),
            KeyValue::new("messaging.operation.name", "publish"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", of_channel.stream.clone()),
            KeyValue::new("messaging.batch.message_count", count(published + failed.len())),
            KeyValue::new("notification.channel", channel.as_str()),
            KeyValue::new("notification.routes.published", count(published)),
            KeyValue::new("notification.routes.failed", count(failed.len())),
        ];
        let builder = tracing
            .tracer
            .span_builder(of_channel.span.clone())
            .with_kind(SpanKind::Producer)
            .with_start_time(system_time(started))
            .with_attributes(attributes)
            .with_links(contexts.into_iter().map(link).collect());
        let mut span = tracing.tracer.build_with_context(builder, &Context::new());
        if let Some(classification) = failed.first() {
            span.set_attribute(KeyValue::new("error.type", *classification));
            span.set_status(Status::error("some routes failed"));
        }
        span.end_with_timestamp(system_time(ended));
    }
}

impl PublishSpan {
    /// Returns the span of the routes of a chunk that were published or failed. `None` if there are none,
    /// because other replicas have their leases.
    pub(crate) fn of(
        channel: Channel,
        started: Timestamp,
        chunk: &[LiveRoute],
        published: &[Published],
        failed: &[Failed],
    ) -> Option<Self> {
        let keys = published.iter().map(|published| &published.key);
        let done: HashSet<&RouteKey> = keys.chain(failed.iter().map(|failed| &failed.key)).collect();
        let contexts = sampled_contexts(chunk.iter().filter(|route| done.contains(&route.key)));
        let (published, failed) =
            (published.len(), failed.iter().map(|failed| failed.classification).collect());
        (!done.is_empty()).then_some(Self { channel, started, contexts, published, failed })
    }
}

/// Returns the contexts of the intents of these routes, each once, if their traces are recorded.
fn sampled_contexts<'a>(routes: impl Iterator<Item = &'a LiveRoute>) -> Vec<TraceParent> {
    let (mut contexts, mut seen) = (Vec::new(), HashSet::new());
    // The routes of one record follow each other and share its content.
    let mut previous = None;
    for route in routes {
        if previous.replace(Arc::as_ptr(&route.content)) == Some(Arc::as_ptr(&route.content)) {
            continue;
        }
        let parent = TraceParent::parse(&route.content.trace_id).filter(|parent| parent.sampled);
        let Some(parent) = parent.filter(|parent| seen.insert(*parent)) else { continue };
        if contexts.len() == MAX_LINKS {
            break;
        }
        contexts.push(parent);
    }
    contexts
}

fn link(parent: TraceParent) -> Link {
    Link::with_context(context(parent))
}

fn context(parent: TraceParent) -> SpanContext {
    let (trace_id, span_id) = (TraceId::from_bytes(parent.trace_id), SpanId::from_bytes(parent.span_id));
    let flags = if parent.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    SpanContext::new(trace_id, span_id, flags, true, TraceState::default())
}

/// Converts a time. Times before 1970 become 1970.
fn system_time(time: Timestamp) -> SystemTime {
    let since_epoch = Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or_default());
    SystemTime::UNIX_EPOCH + since_epoch
}

/// Converts a count, because attributes are signed.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
