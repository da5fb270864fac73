//! What Prometheus scrapes: the same instruments as those sent by OTLP, through a second reader.
//!
//! A scrape reads what the instruments have counted; it asks no store. It runs on a thread for blocking work,
//! one at a time, so that no number of scrapes delays the tasks of the service.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// For how long after a scrape another one is expected: some times the interval of any Prometheus.
const SCRAPE_EXPECTED: Duration = Duration::from_secs(300);

/// The metrics of the process, as text for Prometheus. Clones share them.
#[derive(Clone, Debug)]
pub struct Exposition {
    registry: Registry,
    /// Held by the scrape that runs.
    scraping: Arc<Mutex<()>>,
    /// When the last one began.
    last_scrape: Arc<StdMutex<Option<Instant>>>,
}

impl Exposition {
    /// The media type of [`Exposition::text`].
    pub const CONTENT_TYPE: &'static str = TEXT_FORMAT;

    /// It, and the reader that a meter provider needs for it.
    pub(crate) fn new() -> Result<(Self, PrometheusExporter), OTelSdkError> {
        let registry = Registry::new();
        // The name of the meter is the same for every instrument: as a label it would say nothing.
        let exporter =
            opentelemetry_prometheus::exporter().with_registry(registry.clone()).scope_info_enabled(false);
        Ok((Self { registry, scraping: Arc::default(), last_scrape: Arc::default() }, exporter.build()?))
    }

    /// Whether the metrics are scraped: what is not read need not be measured.
    pub fn is_scraped(&self) -> bool {
        let last = *self.last_scrape.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < SCRAPE_EXPECTED)
    }

    /// All metrics now, in the text format of Prometheus.
    pub async fn text(&self) -> anyhow::Result<String> {
        *self.last_scrape.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        // The thread holds it, so that a client that hangs up does not let the next scrape begin beside this
        // one.
        let permit = Arc::clone(&self.scraping).lock_owned().await;
        let registry = self.registry.clone();
        let encoded = tokio::task::spawn_blocking(move || {
            let text = TextEncoder::new().encode_to_string(&registry.gather());
            drop(permit);
            text
        });
        Ok(encoded.await??)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::KeyValue;
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    fn provider(exporter: PrometheusExporter) -> SdkMeterProvider {
        let resource =
            Resource::builder_empty().with_attribute(KeyValue::new("service.instance.id", "web-1"));
        SdkMeterProvider::builder().with_reader(exporter).with_resource(resource.build()).build()
    }

    #[tokio::test]
    async fn a_counter_a_gauge_and_a_histogram_have_the_names_that_prometheus_expects() {
        let (exposition, exporter) = Exposition::new().expect("a reader");
        let provider = provider(exporter);
        let meter = provider.meter("notification");
        let attributes = [KeyValue::new("http.route", "/a\"b\\\n")];
        meter.u64_counter("notification.things").with_description("Things").build().add(3, &attributes);
        meter.f64_gauge("notification.age").with_unit("s").build().record(1.5, &[]);
        meter.u64_gauge("notification.depth").with_unit("{route}").build().record(7, &[]);
        let histogram = meter.f64_histogram("notification.duration").with_unit("s");
        histogram.with_boundaries(vec![0.1, 1.0]).build().record(0.5, &[]);
        let text = exposition.text().await.expect("it can be encoded");
        for line in [
            "# HELP notification_things_total Things",
            "# TYPE notification_things_total counter",
            r#"notification_things_total{http_route="/a\"b\\\n"} 3"#,
            "notification_age_seconds 1.5",
            "notification_depth 7",
            "# TYPE notification_duration_seconds histogram",
            r#"notification_duration_seconds_bucket{le="1"} 1"#,
            "notification_duration_seconds_count 1",
            r#"target_info{service_instance_id="web-1"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_scraped_from_the_first_scrape_until_none_has_come_for_five_minutes() {
        let (exposition, _exporter) = Exposition::new().expect("a reader");
        assert!(!exposition.is_scraped());
        let clone = exposition.clone();
        exposition.text().await.expect("it can be encoded");
        assert!(clone.is_scraped());
        tokio::time::advance(SCRAPE_EXPECTED).await;
        assert!(!clone.is_scraped());
    }

    #[tokio::test]
    async fn series_of_one_name_stand_together_under_one_type() {
        let (exposition, exporter) = Exposition::new().expect("a reader");
        let provider = provider(exporter);
        let counter = provider.meter("notification").u64_counter("notification.things").build();
        for channel in ["email", "push"] {
            counter.add(1, &[KeyValue::new("channel", channel)]);
        }
        let text = exposition.text().await.expect("it can be encoded");
        assert_eq!(text.matches("# TYPE notification_things_total counter").count(), 1, "{text}");
        assert_eq!(text.matches("\nnotification_things_total{channel=").count(), 2, "{text}");
    }
}
