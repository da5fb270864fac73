//! One intent's path through two replicas, assembled from the spans that their collectors receive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use domain::intent::IntentDraft;
use harness::{HttpResponse, Proxy, Service, request, wait_for};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use redis::streams::StreamRangeReply;
use tokio::net::{TcpListener, TcpStream};

use crate::api::*;
use crate::metrics::receive;
use crate::world::*;

/// The traces of three producers.
const BY_STREAM: Trace = Trace { trace: 0x11, span: 0x1a };
const BY_BODY: Trace = Trace { trace: 0x22, span: 0x2a };
const BY_HEADER: Trace = Trace { trace: 0x33, span: 0x3a };

/// The context that a producer passes on.
#[derive(Clone, Copy)]
struct Trace {
    trace: u128,
    span: u64,
}

impl Trace {
    fn parent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    fn ids(self) -> (Vec<u8>, Vec<u8>) {
        (self.trace.to_be_bytes().to_vec(), self.span.to_be_bytes().to_vec())
    }
}

/// The spans of a replica, with its name.
type Spans = Arc<Mutex<Vec<(String, Span)>>>;

/// Collectors that receive spans by gRPC and by HTTP.
struct Collectors {
    grpc: String,
    http: String,
    spans: Spans,
}

impl Collectors {
    async fn start() -> Self {
        let spans = Spans::default();
        let (grpc, http) = (listener().await, listener().await);
        let addresses = [&grpc, &http].map(|it| format!("http://{}", it.local_addr().expect("it is bound")));
        let (by_grpc, by_http) = (Arc::clone(&spans), Arc::clone(&spans));
        tokio::spawn(async move {
            while let Ok((stream, _)) = grpc.accept().await {
                tokio::spawn(serve_grpc(stream, Arc::clone(&by_grpc)));
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = http.accept().await {
                if let Ok(body) = receive(stream).await {
                    keep(&by_http, &body);
                }
            }
        });
        let [grpc, http] = addresses;
        Self { grpc, http, spans }
    }

    /// The spans of this name that are in the trace or linked to the span of the producer, with the name of
    /// their replica.
    fn of(&self, name: &str, of: Trace) -> Vec<(String, Span)> {
        let (trace, parent) = of.ids();
        let belongs = |span: &Span| {
            let links = span.links.iter().any(|link| link.trace_id == trace && link.span_id == parent);
            links || (span.trace_id == trace && span.parent_span_id == parent)
        };
        let spans = self.spans.lock().expect("not poisoned");
        spans.iter().filter(|(_, span)| span.name == name && belongs(span)).cloned().collect()
    }

    /// The only span with this name in the trace, once it has arrived, with its replica.
    async fn only(&self, name: &str, of: Trace) -> (String, Span) {
        wait_for(&format!("a span {name} of {:x}", of.trace), BOUND, async || {
            let mut found = self.of(name, of);
            assert!(found.len() < 2, "{found:#?}");
            found.pop()
        })
        .await
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port")
}

/// Responds to each request of a connection with an empty message.
async fn serve_grpc(stream: TcpStream, spans: Spans) {
    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let spans = Arc::clone(&spans);
        tokio::spawn(async move {
            let path = request.uri().path().to_owned();
            assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            let (mut body, mut bytes) = (request.into_body(), Vec::new());
            while let Some(Ok(chunk)) = body.data().await {
                body.flow_control().release_capacity(chunk.len()).expect("it was received");
                bytes.extend_from_slice(&chunk);
            }
            // A byte that is set for compression, and the length.
            keep(&spans, &bytes[5..]);
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut answer = respond.send_response(head.body(()).expect("a head"), false).expect("is open");
            answer.send_data(Bytes::from_static(&[0; 5]), false).expect("is open");
            let status =
                [(http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"))];
            answer.send_trailers(status.into_iter().collect()).expect("is open");
        });
    }
}

fn keep(spans: &Spans, message: &[u8]) {
    let request = ExportTraceServiceRequest::decode(message).expect("traces");
    for resource in request.resource_spans {
        let attributes = resource.resource.expect("a resource").attributes;
        let replica = text(&attributes, "service.instance.id").expect("a replica");
        let received = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.lock().expect("not poisoned").extend(received.map(|span| (replica.clone(), span)));
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()?;
    Some(match value {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    })
}

/// A replica that starts no traces of its own.
async fn replica(
    world: &World,
    redis_port: u16,
    name: &str,
    (protocol, endpoint): (&str, &str),
    tokens: &TokensFile,
) -> Service {
    with_api(world.service_via(redis_port, world.database.port()), tokens)
        .env("NOTIFICATION_REPLICA_ID", name)
        .env("OTEL_TRACES_EXPORTER", "otlp")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start()
        .await
}

async fn send_with_trace(
    service: &Service,
    key: &str,
    header: Option<&str>,
    trace_id: Option<&str>,
) -> HttpResponse {
    let mut body = body(1);
    if let Some(trace_id) = trace_id {
        body["trace_id"] = trace_id.into();
    }
    let bearer = format!("Bearer {PRODUCER}");
    let mut headers =
        vec![("Authorization", &*bearer), ("Idempotency-Key", key), ("Content-Type", "application/json")];
    headers.extend(header.map(|header| ("traceparent", header)));
    let answer = request(&service.api_addr(), "POST", "/v1/intents", &headers, body.to_string()).await;
    answer.expect("the API answers")
}

/// The trace ids of the entries of a stream.
async fn trace_ids(world: &World, stream: &str) -> BTreeSet<Option<String>> {
    let range = redis::cmd("XRANGE").arg(&[stream, "-", "+"]).query_async(&mut world.redis().await).await;
    let range: StreamRangeReply = range.expect("Redis is there");
    range.ids.iter().map(|entry| entry.get("trace_id")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_of_an_intent_through_two_replicas_can_be_put_together_from_their_spans() {
    let world = World::new().await;
    let (collectors, tokens) = (Collectors::start().await, TokensFile::new(&world));
    let proxy = Proxy::start(world.redis.port()).await;
    let first = replica(&world, proxy.port(), "first", ("grpc", &collectors.grpc), &tokens).await;

    // By the stream, and without any trace, while there is one replica.
    let draft = IntentDraft { trace_id: Some(BY_STREAM.parent()), ..intent_draft(1) };
    let entry_id = world.add_draft(draft).await;
    world.send([2]).await;
    world.settled(2).await;
    let (by, span) = collectors.only("process notification:intents", BY_STREAM).await;
    assert_eq!((by.as_str(), span.kind()), ("first", SpanKind::Consumer));
    assert_eq!(text(&span.attributes, "messaging.message.id"), Some(entry_id));
    assert_eq!(text(&span.attributes, "notification.outcome").as_deref(), Some("accepted"));
    for stream in [PUSH, MAIL] {
        let (by, span) = collectors.only(&format!("publish {stream}"), BY_STREAM).await;
        assert_eq!((by.as_str(), span.kind()), ("first", SpanKind::Producer));
    }

    // The first replica accepts by HTTP, and only the second one can publish.
    let by_http = ("http/protobuf", &*collectors.http);
    let second = replica(&world, world.redis.port(), "second", by_http, &tokens).await;
    proxy.cut();
    let (given, header) = (BY_BODY.parent(), BY_HEADER.parent());
    assert_eq!(send_with_trace(&first, "k-1", Some(&header), Some(&given)).await.status, 202);
    assert_eq!(send_with_trace(&first, "k-2", Some(&header), None).await.status, 202);
    assert_eq!(send_with_trace(&first, "k-3", None, Some("lobby-7c1e")).await.status, 202);
    world.settled(5).await;
    let (by, span) = collectors.only("process intent", BY_BODY).await;
    assert_eq!((by.as_str(), span.links.len()), ("first", 1), "{span:?}");
    assert_eq!(span.trace_id, BY_BODY.ids().0);
    // The other one is the link of the first.
    let (trace, parent) = BY_HEADER.ids();
    let of_header = wait_for("the intent with a header", BOUND, async || {
        let mut spans = collectors.of("process intent", BY_HEADER);
        spans.retain(|(_, span)| span.trace_id == trace);
        spans.pop()
    })
    .await;
    assert_eq!((of_header.0.as_str(), of_header.1.parent_span_id), ("first", parent));
    for stream in [PUSH, MAIL] {
        let (by, span) = collectors.only(&format!("publish {stream}"), BY_BODY).await;
        assert_eq!(
            (by.as_str(), text(&span.attributes, "messaging.system").as_deref()),
            ("second", Some("redis"))
        );
        assert!(text(&span.attributes, "messaging.batch.message_count").is_some(), "{span:?}");
    }

    for stream in [PUSH, MAIL] {
        let given = [Some(BY_STREAM.parent()), Some(given.clone()), Some("lobby-7c1e".to_owned()), None];
        assert_eq!(trace_ids(&world, stream).await, given.into(), "{stream}");
    }
    drop((first, second));
    check_attributes(&collectors);
}

/// Checks that spans have only the attributes in docs/tracing.md, and no user or payload.
fn check_attributes(collectors: &Collectors) {
    let page = include_str!("../../../../docs/tracing.md");
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, span) in collectors.spans.lock().expect("not poisoned").iter() {
        for attribute in &span.attributes {
            assert!(
                page.contains(&format!("| `{}` |", attribute.key)),
                "{} is not on the page",
                attribute.key
            );
            let value = text(&span.attributes, &attribute.key).expect("a value");
            assert!(!["u-1", "u-101", "Nova", "@"].iter().any(|private| value.contains(private)), "{value}");
            names.entry(span.name.clone()).or_default().insert(attribute.key.clone());
        }
    }
    let spans = ["process intent", "process notification:intents", "publish gateway:client-events"];
    assert!(spans.iter().all(|name| names.contains_key(*name)), "{names:?}");
}
