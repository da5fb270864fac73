//! The configuration of logs, traces and metrics.

use tracing::level_filters::LevelFilter;
use url::Url;

use super::knob::Knob;
use super::knobs::*;
use super::reader::{Reader, Section};
use super::section::section;
use super::value::Word;

/// The telemetry of the process.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// The level and format of the log.
    pub log: Log,
    /// The name of the service, if it is configured.
    pub service_name: Option<String>,
    /// The collector of traces, if there is one.
    pub traces: Option<Collector>,
    /// The sampler that decides which traces are recorded.
    pub sampler: Sampler,
    /// The collector of metrics, if there is one.
    pub metrics: Option<Collector>,
    /// True if metrics are served for Prometheus.
    pub prometheus: bool,
}

section! {
    /// The level and format of the log.
    #[derive(Debug, Clone, Copy)]
    pub struct Log {
        /// The least severe level that is logged.
        pub level: LevelFilter = NOTIFICATION_LOG_LEVEL => level,
        /// The format of a line.
        pub format: LogFormat = NOTIFICATION_LOG_FORMAT =>
            |word: Word| if word.is("text") { LogFormat::Text } else { LogFormat::Json },
    }
}

fn level(word: Word) -> LevelFilter {
    match word.as_str() {
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => LevelFilter::INFO,
    }
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object.
    Json,
    /// Text for a person at a terminal.
    Text,
}

/// An OTLP collector for one signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// The protocol of the collector.
    pub protocol: Protocol,
    /// The whole URL, including the path.
    pub endpoint: String,
}

/// The sampling of traces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// True if a trace that a producer began is recorded if and only if the producer records it.
    pub parent_based: bool,
    /// The share of the other traces, from 0 to 1.
    pub share: f64,
}

/// The protocol of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Grpc,
    /// Protocol buffers over HTTP.
    Http,
}

impl TelemetryConfig {
    /// Returns true if metrics are exported or scraped.
    pub fn measures(&self) -> bool {
        self.prometheus || self.metrics.is_some()
    }
}

impl Section for TelemetryConfig {
    fn read(reader: &mut Reader) -> Option<Self> {
        let log = Log::read(reader);
        let disabled = reader.get::<Word>(&OTEL_SDK_DISABLED);
        let service_name = reader.get(&OTEL_SERVICE_NAME);
        let protocol = reader.get::<Word>(&OTEL_EXPORTER_OTLP_PROTOCOL);
        let endpoint = reader.get::<Option<Url>>(&OTEL_EXPORTER_OTLP_ENDPOINT);
        let traces = Signal::read(
            reader,
            [&OTEL_TRACES_EXPORTER, &OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, &OTEL_EXPORTER_OTLP_TRACES_ENDPOINT],
        );
        let sampler = Sampler::read(reader);
        let metrics = Signal::read(
            reader,
            [
                &OTEL_METRICS_EXPORTER,
                &OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
                &OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
            ],
        );
        let (is_disabled, protocol, endpoint) = (disabled?.is("true"), protocol?, endpoint?);
        let collector = |signal: Signal, path: &str| {
            (signal.exported && !is_disabled).then(|| signal.collector(protocol, endpoint.as_ref(), path))
        };
        Some(Self {
            log: log?,
            service_name: service_name?,
            traces: collector(traces?, "v1/traces"),
            sampler: sampler?,
            metrics: collector(metrics?, "v1/metrics"),
            prometheus: !is_disabled,
        })
    }
}

impl Section for Sampler {
    fn read(reader: &mut Reader) -> Option<Self> {
        let word = reader.get::<Word>(&OTEL_TRACES_SAMPLER);
        let share = reader.get(&OTEL_TRACES_SAMPLER_ARG);
        let (word, share) = (word?.as_str(), share?);
        let (parent_based, rule) = match word.strip_prefix("parentbased_") {
            Some(rule) => (true, rule),
            None => (false, word),
        };
        let share = match rule {
            "always_off" => 0.0,
            "traceidratio" => share,
            _ => 1.0,
        };
        Some(Self { parent_based, share })
    }
}

/// The values of the variables of one signal.
struct Signal {
    exported: bool,
    protocol: Option<Word>,
    endpoint: Option<Url>,
}

impl Signal {
    fn read(reader: &mut Reader, [exporter, protocol, endpoint]: [&'static Knob; 3]) -> Option<Self> {
        let exporter = reader.get::<Word>(exporter);
        let (protocol, endpoint) = (reader.get(protocol), reader.get(endpoint));
        Some(Self { exported: exporter?.is("otlp"), protocol: protocol?, endpoint: endpoint? })
    }

    /// The collector of the signal. Its endpoint is the variable of the signal, else that of all signals with
    /// the `path`, else the default.
    fn collector(self, protocol: Word, base: Option<&Url>, path: &str) -> Collector {
        let grpc = self.protocol.unwrap_or(protocol).is("grpc");
        let base = match base {
            Some(url) => url.as_str(),
            None if grpc => "http://localhost:4317",
            None => "http://localhost:4318",
        };
        let endpoint = match self.endpoint {
            Some(whole) => whole.to_string(),
            None if grpc => base.to_owned(),
            None => format!("{}/{path}", base.trim_end_matches('/')),
        };
        Collector { protocol: if grpc { Protocol::Grpc } else { Protocol::Http }, endpoint }
    }
}
