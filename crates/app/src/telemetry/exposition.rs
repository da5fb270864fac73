//! The metrics for Prometheus: the same instruments as those sent by OTLP, through a second reader.
//!
//! A scrape reads the values of the instruments and queries no store. It runs on a thread for blocking work,
//! one at a time, so that no number of scrapes delays the tasks of the service.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use prometheus::{Registry, TEXT_FORMAT, TextEncoder};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The time after a scrape during which another one is expected: several times the interval of any
/// Prometheus.
const SCRAPE_EXPECTED: Duration = Duration::from_secs(300);

/// The metrics of the process, as text for Prometheus. Clones share them.
#[derive(Clone, Debug)]
pub struct Exposition {
    registry: Registry,
    /// The lock that the running scrape holds.
    scraping: Arc<Mutex<()>>,
    /// The time at which the last scrape began.
    last_scrape: Arc<StdMutex<Option<Instant>>>,
}

impl Exposition {
    /// The media type of [`Exposition::text`].
    pub const CONTENT_TYPE: &'static str = TEXT_FORMAT;

    /// Creates an exposition, and the reader that a meter provider needs for it.
    pub(crate) fn new() -> Result<(Self, PrometheusExporter), OTelSdkError> {
        let registry = Registry::new();
        // The name of the meter is the same for every instrument, so it would be a useless label.
        let exporter =
            opentelemetry_prometheus::exporter().with_registry(registry.clone()).scope_info_enabled(false);
        Ok((Self { registry, scraping: Arc::default(), last_scrape: Arc::default() }, exporter.build()?))
    }

    /// Returns true if the metrics are scraped. Values that are not scraped need not be measured.
    pub fn is_scraped(&self) -> bool {
        let last = *self.last_scrape.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < SCRAPE_EXPECTED)
    }

    /// All present metrics in the text format of Prometheus.
    pub async fn text(&self) -> anyhow::Result<String> {
        *self.last_scrape.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        // The thread holds the permit, so that the next scrape waits for this one even if the client
        // disconnects.
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
