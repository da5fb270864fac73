//! Builders of instruments, shared by every part of the service.

use opentelemetry::metrics::{AsyncInstrument, Counter, Gauge, Histogram, Meter};

/// Bucket bounds in seconds: fine up to the expected latency, coarse beyond it.
pub const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Makes the instruments of a meter. Each has a name and a description, `what`.
#[derive(Clone, Copy, Debug)]
pub struct Instruments<'a>(&'a Meter);

impl<'a> Instruments<'a> {
    /// Makes instruments of `meter`.
    pub fn new(meter: &'a Meter) -> Self {
        Self(meter)
    }

    /// A counter, without a unit.
    pub fn counter(&self, name: &'static str, what: &'static str) -> Counter<u64> {
        self.0.u64_counter(name).with_description(what).build()
    }

    /// A gauge of a number of `unit`, which in braces names the counted thing.
    pub fn gauge(&self, name: &'static str, unit: &'static str, what: &'static str) -> Gauge<u64> {
        self.0.u64_gauge(name).with_unit(unit).with_description(what).build()
    }

    /// A gauge of a time in seconds.
    pub fn age(&self, name: &'static str, what: &'static str) -> Gauge<f64> {
        self.0.f64_gauge(name).with_unit("s").with_description(what).build()
    }

    /// Same as [`Instruments::gauge`], but calls `read` for the values whenever the metrics are read. `read`
    /// must not block.
    pub fn observed_gauge(
        &self,
        name: &'static str,
        unit: &'static str,
        what: &'static str,
        read: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static,
    ) {
        let builder = self.0.u64_observable_gauge(name).with_unit(unit).with_description(what);
        builder.with_callback(read).build();
    }

    /// Same as [`Instruments::age`], but calls `read` for the values whenever the metrics are read. `read`
    /// must not block.
    pub fn observed_age(
        &self,
        name: &'static str,
        what: &'static str,
        read: impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static,
    ) {
        let builder = self.0.f64_observable_gauge(name).with_unit("s").with_description(what);
        builder.with_callback(read).build();
    }

    /// A counter of seconds, whose value `read` returns whenever the metrics are read. `read` must not block.
    pub fn observed_time(
        &self,
        name: &'static str,
        what: &'static str,
        read: impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static,
    ) {
        let builder = self.0.f64_observable_counter(name).with_unit("s").with_description(what);
        builder.with_callback(read).build();
    }

    /// A histogram of durations in seconds, in buckets up to each of `bounds`.
    pub fn duration(&self, name: &'static str, bounds: &[f64], what: &'static str) -> Histogram<f64> {
        let builder = self.0.f64_histogram(name).with_unit("s").with_description(what);
        builder.with_boundaries(bounds.to_vec()).build()
    }

    /// A histogram of numbers of `unit`, in buckets up to each of `bounds`.
    pub fn sizes(
        &self,
        name: &'static str,
        unit: &'static str,
        bounds: &[f64],
        what: &'static str,
    ) -> Histogram<u64> {
        let builder = self.0.u64_histogram(name).with_unit(unit).with_description(what);
        builder.with_boundaries(bounds.to_vec()).build()
    }
}
