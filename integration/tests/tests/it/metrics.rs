//! The API's metrics as a collector receives them: the values, not only the names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::{UserFault, wait_for};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric, number_data_point};
use prost::Message;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::api::*;
use crate::world::*;

/// The duration of the slow lookup.
const SLOW: Duration = Duration::from_secs(1);

/// The values of the attributes in the order of their names, joined by blanks.
type Labels = String;

/// A collector over HTTP that keeps the last request: counters are sums since the start.
struct Collector {
    endpoint: String,
    last: Arc<Mutex<Option<ExportMetricsServiceRequest>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
        let last = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&last);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(body) = receive(stream).await {
                    let request = ExportMetricsServiceRequest::decode(body.as_slice());
                    *keep.lock().expect("not poisoned") = Some(request.expect("metrics"));
                }
            }
        });
        Self { endpoint, last }
    }

    /// The counts of a counter, and the numbers of values and sums of a histogram, by labels.
    fn values(&self, name: &str) -> BTreeMap<Labels, (u64, f64)> {
        let last = self.last.lock().expect("not poisoned").clone().expect("metrics were sent");
        let scopes = last.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let metric = scopes.flat_map(|scope| scope.metrics).find(|metric| metric.name == name);
        match metric.unwrap_or_else(|| panic!("there is no {name}")).data.expect("values") {
            metric::Data::Sum(sum) => {
                let point = |point: NumberDataPoint| {
                    let Some(number_data_point::Value::AsInt(count)) = point.value else {
                        panic!("{point:?}")
                    };
                    (labels(&point.attributes), (count.unsigned_abs(), 0.0))
                };
                sum.data_points.into_iter().map(point).collect()
            }
            metric::Data::Histogram(histogram) => {
                let points = histogram.data_points.into_iter();
                points
                    .map(|point| (labels(&point.attributes), (point.count, point.sum.unwrap_or(-1.0))))
                    .collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn counts(&self, name: &str) -> BTreeMap<Labels, u64> {
        self.values(name).into_iter().map(|(labels, (count, _))| (labels, count)).collect()
    }
}

/// Receives a request, responds to it and returns its body.
pub(crate) async fn receive(stream: TcpStream) -> std::io::Result<Vec<u8>> {
    let mut stream = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while stream.read_line(&mut line).await? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await?;
    Ok(body)
}

fn labels(attributes: &[KeyValue]) -> Labels {
    let value = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let named: BTreeMap<&str, String> =
        attributes.iter().map(|attribute| (attribute.key.as_str(), value(attribute))).collect();
    named.into_values().collect::<Vec<_>>().join(" ")
}

fn counts<const N: usize>(expected: [(&str, u64); N]) -> BTreeMap<Labels, u64> {
    expected.map(|(labels, count)| (labels.to_owned(), count)).into()
}

#[tokio::test]
async fn every_answer_of_the_api_every_claim_and_every_report_is_counted_by_what_became_of_it() {
    let world = World::new().await;
    let collector = Collector::start().await;
    let tokens = TokensFile::new(&world);
    let mut service = with_api(world.service(), &tokens)
        .env("OTEL_METRICS_EXPORTER", "otlp")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)
        .env("NOTIFICATION_USER_SERVICE_TIMEOUT", "10s")
        .start()
        .await;
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    assert_eq!(send(&service, "k-1", &body(54)).await.status, 202);
    assert_eq!(send(&service, "k-1", &body(55)).await.status, 422);
    let mut malformed = body(54);
    malformed["colour"] = json!("red");
    assert_eq!(send(&service, "k-2", &malformed).await.status, 422);
    assert_eq!(read(&service, OPERATOR, "/v1/nothing").await.status, 404);
    assert_eq!(read(&service, OPERATOR, "/v1/notifications/none").await.status, 404);
    let id =
        read(&service, OPERATOR, "/v1/notifications").await.json()["notifications"][0]["notification_id"]
            .as_str()
            .expect("an id")
            .to_owned();
    let report = |id: &str, status: &str| json!({"id": id, "status": status, "at": "2026-04-02T09:21:40Z"});
    let (push, unknown) = (format!("{id}/push:user:u-1"), format!("{id}/push:user:u-7"));
    let reports = json!({"receipts": [
        report(&push, "opened"), report(&push, "failed"), report(&push, "opened"), report(&unknown, "opened"),
        report(&push, "read"), report(&push, "bounced"),
    ]});
    let reported = ask(&service, OPERATOR, "POST", "/v1/receipts", None, &reports.to_string()).await;
    assert_eq!(reported.status, 200, "{}", reported.body);
    // A request that loses its claim during the lookup of its recipient.
    world.directory.set_fault("u-slow", UserFault::Slow(SLOW));
    let mut slow = body(54);
    slow["recipient_user_ids"] = json!(["u-slow"]);
    let overtaken = async {
        wait_for("its look-up has begun", BOUND, async || {
            (world.directory.requests_for("u-slow") > 0).then_some(())
        })
        .await;
        assert_eq!(send(&service, "k-slow", &slow).await.status, 409);
        assert_eq!(world.execute("DELETE FROM idempotency_keys WHERE key = 'k-slow'").await, 1);
    };
    let (fenced, ()) = tokio::join!(send(&service, "k-slow", &slow), overtaken);
    assert_eq!(fenced.status, 503, "{}", fenced.body);
    service.signal("TERM");
    assert_eq!(service.wait_exit(BOUND).await.code(), Some(0), "{:?}", service.output());

    let durations = collector.values("http.server.request.duration");
    let answered: BTreeMap<Labels, u64> =
        durations.iter().map(|(labels, (count, _))| (labels.clone(), *count)).collect();
    let expected = counts([
        ("202 /v1/intents", 2),
        ("422 /v1/intents", 2),
        ("409 /v1/intents", 1),
        ("503 /v1/intents", 1),
        ("404 /v1/notifications/{notification_id}", 1),
        ("200 /v1/notifications", 1),
        ("200 /v1/receipts", 1),
        ("404", 1),
    ]);
    assert_eq!(answered, expected);
    let seconds = durations["503 /v1/intents"].1;
    assert!((SLOW.as_secs_f64()..BOUND.as_secs_f64()).contains(&seconds), "{seconds} seconds");
    let received = counts([("recorded", 2), ("stale", 2), ("unknown_route", 1), ("invalid", 1)]);
    assert_eq!(collector.counts("notification.receipts"), received);
    let claimed = counts([("new", 2), ("completed", 1), ("conflict", 1), ("pending", 1)]);
    assert_eq!(collector.counts("idempotency.claims"), claimed);
    assert_eq!(collector.counts("idempotency.fenced"), counts([("", 1)]));
}
