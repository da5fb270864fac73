//! Logs on standard output, metrics for Prometheus to scrape, and traces and metrics for an OTLP collector if
//! one is configured.
//!
//! A slow or unavailable collector does not slow down the service: exporters run on their own threads, drop
//! data that they cannot send, and log at most one line a minute. docs/logging.md explains the fields of a
//! log line. Logs are not exported.

mod exposition;
mod process;
mod sampler;

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::{Key, KeyValue, global};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol as OtlpProtocol, SpanExporter, WithExportConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracerProvider, TracerProviderBuilder};
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt, Targets, dynamic_filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

pub use self::exposition::Exposition;
use self::sampler::LinkSampler;
use crate::config::{Collector, Log, LogFormat, Protocol, ReplicaId, Sampler, TelemetryConfig};

/// The default name of the service.
const SERVICE_NAME: &str = "notification";

/// Libraries whose log is limited to warnings and errors.
const NOISY: [&str; 9] = [
    "hyper",
    "hyper_util",
    "opentelemetry",
    "refinery_core",
    "reqwest",
    "rustls",
    "tokio_postgres",
    "tonic",
    "tower",
];

/// The library that logs a warning for each HTTP/2 connection whose client broke a limit, as often as clients
/// like.
const HTTP2: &str = "h2";

/// The target under which the migration library logs an error for each migration that only a newer release
/// contains. After a rollback such migrations are expected.
const NEWER_SCHEMA: &str = "refinery_core::traits::missing";

/// The library that verifies certificates logs an ERROR for each invalid one, at each attempt to connect. The
/// service logs the same text once, as the cause of an outage.
const CERTIFICATES: &str = "rustls_platform_verifier";

/// The minimum time between two log lines about the exporters.
const EXPORTER_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// An `OTEL_` variable that the SDK reads by itself is invalid.
    #[error("could not set up the {signal} exporter")]
    Exporter {
        /// `traces` or `metrics`.
        signal: &'static str,
        /// The error of the SDK.
        #[source]
        source: ExporterBuildError,
    },
    /// The metrics for Prometheus could not be set up.
    #[error("could not set up the metrics for Prometheus")]
    Exposition(#[source] OTelSdkError),
    /// The process already has a logger.
    #[error("could not install the logger")]
    Installed(#[source] TryInitError),
}

/// The exporters of the process, if there are any.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    exposition: Option<Exposition>,
}

impl Telemetry {
    /// Starts logging, tracing and metrics for the whole process. Needs a tokio runtime, for gRPC.
    pub fn install(config: &TelemetryConfig, replica: &ReplicaId) -> Result<Self, TelemetryError> {
        let telemetry = Self::build(config, replica)?;
        let subscriber = tracing_subscriber::registry().with(log_layer(config.log, io::stdout));
        subscriber.try_init().map_err(TelemetryError::Installed)?;
        if let Some(provider) = &telemetry.traces {
            global::set_tracer_provider(provider.clone());
        }
        if let Some(provider) = &telemetry.metrics {
            global::set_meter_provider(provider.clone());
            process::observe(&global::meter(SERVICE_NAME));
        }
        log_panics();
        Ok(telemetry)
    }

    /// The metrics for Prometheus, if they are enabled.
    pub fn exposition(&self) -> Option<Exposition> {
        self.exposition.clone()
    }

    /// Creates the exporters without installing them.
    fn build(config: &TelemetryConfig, replica: &ReplicaId) -> Result<Self, TelemetryError> {
        let failed = |signal| move |source| TelemetryError::Exporter { signal, source };
        let traces = config.traces.as_ref().map(span_exporter).transpose().map_err(failed("traces"))?;
        let metrics = config.metrics.as_ref().map(metric_exporter).transpose().map_err(failed("metrics"))?;
        let resource = resource(config.service_name.as_deref(), replica);
        let traces = traces.map(|exporter| {
            tracer_provider(config.sampler)
                .with_batch_exporter(exporter)
                .with_resource(resource.clone())
                .build()
        });
        let (exposition, scraped) = match config.prometheus {
            true => Some(Exposition::new().map_err(TelemetryError::Exposition)?).unzip(),
            false => (None, None),
        };
        let metrics = (metrics.is_some() || scraped.is_some()).then(|| {
            let mut builder = SdkMeterProvider::builder().with_resource(resource);
            if let Some(exporter) = metrics {
                builder = builder.with_periodic_exporter(exporter);
            }
            if let Some(exporter) = scraped {
                builder = builder.with_reader(exporter);
            }
            builder.build()
        });
        Ok(Self { traces, metrics, exposition })
    }

    /// Sends the remaining telemetry. Waits at most `bound`; data not sent by then is lost.
    pub async fn shutdown(self, bound: Duration) {
        let Self { traces, metrics, exposition: _ } = self;
        // Both calls block until the collector has responded or was given up on, so each runs on a thread of
        // its own. These are not threads of the runtime, because the runtime would wait for them without a
        // limit.
        let traces = traces.map(|provider| on_a_thread(move || provider.shutdown_with_timeout(bound)));
        let metrics = metrics.map(|provider| on_a_thread(move || provider.shutdown_with_timeout(bound)));
        let both = async {
            for (signal, outcome) in [("traces", traces), ("metrics", metrics)] {
                let Some(outcome) = outcome else { continue };
                if let Ok(Err(error)) = outcome.await {
                    tracing::warn!(signal, error = %error, "the last telemetry was not sent");
                }
            }
        };
        if tokio::time::timeout(bound, both).await.is_err() {
            tracing::warn!("the last telemetry was not sent in time");
        }
    }
}

fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, outcome) = oneshot::channel();
    thread::spawn(move || done.send(work()));
    outcome
}

/// Provides tracers that record the spans that `sampler` selects, with room for the links of a batch.
fn tracer_provider(sampler: Sampler) -> TracerProviderBuilder {
    let links = u32::try_from(workers::MAX_LINKS).unwrap_or(u32::MAX);
    SdkTracerProvider::builder().with_sampler(LinkSampler::new(sampler)).with_max_links_per_span(links)
}

fn span_exporter(collector: &Collector) -> Result<SpanExporter, ExporterBuildError> {
    let builder = SpanExporter::builder();
    let endpoint = collector.endpoint.as_str();
    match collector.protocol {
        Protocol::Grpc => {
            builder.with_tonic().with_protocol(OtlpProtocol::Grpc).with_endpoint(endpoint).build()
        }
        Protocol::Http => {
            builder.with_http().with_protocol(OtlpProtocol::HttpBinary).with_endpoint(endpoint).build()
        }
    }
}

fn metric_exporter(collector: &Collector) -> Result<MetricExporter, ExporterBuildError> {
    let builder = MetricExporter::builder();
    let endpoint = collector.endpoint.as_str();
    match collector.protocol {
        Protocol::Grpc => {
            builder.with_tonic().with_protocol(OtlpProtocol::Grpc).with_endpoint(endpoint).build()
        }
        Protocol::Http => {
            builder.with_http().with_protocol(OtlpProtocol::HttpBinary).with_endpoint(endpoint).build()
        }
    }
}

/// The resource of all telemetry: the name of the replica, and the name of the service. The latter is the
/// configured one, else that of the standard variables, else the default.
fn resource(service_name: Option<&str>, replica: &ReplicaId) -> Resource {
    let detected = Resource::builder().build();
    let named = detected.get(&Key::new("service.name")).map(|name| name.to_string());
    let named = named.filter(|name| !name.starts_with("unknown_service"));
    let name = service_name.map(str::to_owned).or(named).unwrap_or_else(|| SERVICE_NAME.to_owned());
    let instance = KeyValue::new("service.instance.id", replica.to_string());
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Resource::builder().with_service_name(name).with_attributes([instance, version]).build()
}

/// Logs everything from `level` on, except that the noisy libraries log at most warnings, HTTP/2 at most
/// errors and the silent ones nothing.
fn silenced(level: LevelFilter) -> Targets {
    let quiet = NOISY.map(|target| (target, level.min(LevelFilter::WARN)));
    let silent = [NEWER_SCHEMA, CERTIFICATES].map(|target| (target, LevelFilter::OFF));
    let targets = Targets::new().with_default(level).with_targets(quiet).with_targets(silent);
    targets.with_target(HTTP2, level.min(LevelFilter::ERROR))
}

/// Writes each event as one line.
fn log_layer<S, W>(log: Log, writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = fmt::layer().with_writer(writer);
    let layer = match log.format {
        LogFormat::Json => {
            layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
        }
        LogFormat::Text => layer.with_ansi(false).boxed(),
    };
    let pause = Pause::default();
    let not_too_often =
        dynamic_filter_fn(move |event, _| !is_of_exporters(event) || pause.over(Instant::now()));
    layer.with_filter(silenced(log.level).and(not_too_often))
}

fn is_of_exporters(event: &Metadata<'_>) -> bool {
    event.target().starts_with("opentelemetry")
}

/// Limits log lines about the exporters.
#[derive(Default)]
struct Pause(Mutex<Option<Instant>>);

impl Pause {
    /// Returns true if a line may be logged now, and then starts the next interval.
    fn over(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = last.is_none_or(|last| now.duration_since(last) >= EXPORTER_LOG_INTERVAL);
        if over {
            *last = Some(now);
        }
        over
    }
}

/// Logs panics as errors from now on.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("not a text");
        tracing::error!(place, error = message, "a task panicked");
    }));
}

#[cfg(test)]
mod tests;
