//! Spans for a collector of traces: one for each intent that has an outcome, one for each batch of routes that is published.
//!
//! A span is made when its work has ended, so that nothing is kept for it meanwhile, and nothing is done where traces are off.
//! Names and attributes follow OpenTelemetry's semantic conventions for messaging (ADR 0043). No span has a payload, a user id or an
//! address.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ambient::Timestamp;
use domain::route::{Channel, LiveRoute};
use domain::trace_parent::TraceParent;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{
    Link, Span, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer,
};
use opentelemetry::{Context, KeyValue};

/// The most contexts that one batch is linked to; of more, the first count. A batch has at most as many routes by default.
pub const MAX_LINKS: usize = 512;

/// The streams whose names spans have.
#[derive(Clone, Debug)]
pub struct TracedStreams {
    /// The intents stream.
    pub intents: String,
    /// The outbound stream of push.
    pub push: String,
    /// The outbound stream of email.
    pub email: String,
}

/// Makes the spans of the workers. The default makes none.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Tracing>>);

#[derive(Debug)]
struct Tracing {
    tracer: BoxedTracer,
    streams: TracedStreams,
}

/// An intent that has an outcome.
#[derive(Debug)]
pub(crate) struct IntentSpan<'a> {
    /// When it was read or submitted.
    pub(crate) started: Timestamp,
    /// When its outcome was certain.
    pub(crate) ended: Timestamp,
    /// Where it came from: `stream`, `http` or `batch`.
    pub(crate) source: &'static str,
    /// Its id in the stream, or the id of its notification.
    pub(crate) message_id: Option<String>,
    /// The field `trace_id`.
    pub(crate) trace_id: &'a str,
    /// The trace of the request that it came with.
    pub(crate) request_trace: Option<TraceParent>,
    /// A type of the catalogue; empty if it is not known.
    pub(crate) notification_type: &'a str,
    /// What became of it, as the metric says.
    pub(crate) outcome: &'static str,
    /// Whether that is a failure of this service.
    pub(crate) failed: bool,
}

/// A batch that is being published.
#[derive(Debug)]
pub(crate) struct PublishSpan {
    tracing: Arc<Tracing>,
    channel: Channel,
    started: Timestamp,
    messages: usize,
    contexts: Vec<TraceParent>,
}

impl Traces {
    /// Makes spans with this tracer.
    pub fn new(tracer: BoxedTracer, streams: TracedStreams) -> Self {
        Self(Some(Arc::new(Tracing { tracer, streams })))
    }

    /// Whether spans are made.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The span of an intent. It continues the trace of its field `trace_id`, else that of the request. If both are known and differ, it
    /// is linked to that of the request.
    pub(crate) fn intent(&self, span: &IntentSpan<'_>) {
        let Some(tracing) = &self.0 else { return };
        let given = TraceParent::parse(span.trace_id);
        let parent = given.or(span.request_trace);
        let linked = span.request_trace.filter(|request| Some(*request) != parent);
        let is_entry = span.source == crate::metrics::STREAM;
        let name = if is_entry {
            format!("process {}", tracing.streams.intents)
        } else {
            "process intent".to_owned()
        };
        let mut attributes = vec![
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("notification.source", span.source),
            KeyValue::new("notification.outcome", span.outcome),
        ];
        if is_entry {
            attributes.push(KeyValue::new("messaging.system", "redis"));
            attributes.push(KeyValue::new("messaging.destination.name", tracing.streams.intents.clone()));
        }
        if !span.notification_type.is_empty() {
            attributes.push(KeyValue::new("notification.type", span.notification_type.to_owned()));
        }
        if let Some(id) = &span.message_id {
            attributes.push(KeyValue::new("messaging.message.id", id.clone()));
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

    /// Begins the span of a batch of routes. `None` if traces are off.
    pub(crate) fn begin_publish<'a>(
        &self,
        channel: Channel,
        now: impl FnOnce() -> Timestamp,
        routes: impl ExactSizeIterator<Item = &'a LiveRoute>,
    ) -> Option<PublishSpan> {
        let tracing = Arc::clone(self.0.as_ref()?);
        let messages = routes.len();
        Some(PublishSpan { tracing, channel, started: now(), messages, contexts: sampled_contexts(routes) })
    }
}

impl PublishSpan {
    /// Ends the span, with the number of routes that were published, and how the failed ones are classified.
    pub(crate) fn end(self, now: Timestamp, published: usize, failed: &[&'static str]) {
        let Self { tracing, channel, started, messages, contexts } = self;
        let stream = match channel {
            Channel::Push => &tracing.streams.push,
            Channel::Email => &tracing.streams.email,
        };
        let attributes = vec![
            KeyValue::new("messaging.system", "redis"),
            KeyValue::new("messaging.operation.name", "publish"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", stream.clone()),
            KeyValue::new("messaging.batch.message_count", count(messages)),
            KeyValue::new("notification.channel", channel.as_str()),
            KeyValue::new("notification.routes.published", count(published)),
            KeyValue::new("notification.routes.failed", count(failed.len())),
        ];
        let builder = tracing
            .tracer
            .span_builder(format!("publish {stream}"))
            .with_kind(SpanKind::Producer)
            .with_start_time(system_time(started))
            .with_attributes(attributes)
            .with_links(contexts.into_iter().map(link).collect());
        let mut span = tracing.tracer.build_with_context(builder, &Context::new());
        if let Some(classification) = failed.first() {
            span.set_attribute(KeyValue::new("error.type", *classification));
            span.set_status(Status::error("some routes failed"));
        }
        span.end_with_timestamp(system_time(now));
    }
}

/// The contexts of the intents of these routes, each once, as far as their traces are recorded.
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

/// Times before 1970 are not measured.
fn system_time(time: Timestamp) -> SystemTime {
    let since_epoch = Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or_default());
    SystemTime::UNIX_EPOCH + since_epoch
}

/// Attributes are signed.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
