//! The measured figures of the calculator, and the machine on which they were measured.
//!
//! Sizes are from `bench --only capacity` and hold anywhere. Processor times and the rate are from one run on
//! one machine, because costs of a slow machine would contradict the rate of a fast one. The same benchmark
//! measures all of them together.

/// One measured cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The name of the cost in docs/capacity.md.
    pub name: &'static str,
    /// [`BYTES`], or [`MICROS`] of processor time.
    pub unit: &'static str,
    /// The measured value, in `unit`.
    pub value: f64,
}

/// The unit of a size.
pub const BYTES: &str = "bytes";
/// The unit of processor time.
pub const MICROS: &str = "µs";

impl Cost {
    /// A row of the table in docs/capacity.md.
    pub fn row(&self) -> String {
        format!("| {} | {} {} |\n", self.name, self.value, self.unit)
    }
}

/// Each cost once: its field, its name in docs/capacity.md, and its last measured value.
macro_rules! costs {
    ($($field:ident: $name:literal, $value:literal $unit:ident;)*) => {
        /// The costs of one intent, route or other item: sizes in bytes, processor time in microseconds.
        #[derive(Clone, Copy, Debug)]
        pub struct Costs {
            $(#[doc = $name] pub $field: f64,)*
        }

        impl Costs {
            /// The costs in the order of docs/capacity.md.
            pub fn list(&self) -> Vec<Cost> {
                vec![$(Cost { name: $name, unit: $unit, value: self.$field },)*]
            }
        }

        /// The last measured costs.
        pub const MEASURED: Costs = Costs { $($field: $value,)* };
    };
}

costs! {
    record: "a record in PostgreSQL", 720.0 BYTES;
    route: "a route in PostgreSQL", 510.0 BYTES;
    intent_wal: "WAL of an intent, from acceptance to deletion", 1_200.0 BYTES;
    route_wal: "WAL of a route, from acceptance to deletion", 850.0 BYTES;
    intent_entry: "an entry of the intents stream", 440.0 BYTES;
    outbound_entry: "an entry of an outbound stream", 560.0 BYTES;
    route_keys: "other keys of Redis, a route", 170.0 BYTES;
    idempotency_key: "a row of idempotency_keys", 440.0 BYTES;
    receipt: "a row of receipts", 280.0 BYTES;
    operator_action: "a row of operator_actions", 310.0 BYTES;
    intent_postgres: "CPU of PostgreSQL, an intent", 20.0 MICROS;
    route_postgres: "CPU of PostgreSQL, a route", 16.0 MICROS;
    intent_redis: "CPU of Redis, an intent", 10.0 MICROS;
    route_redis: "CPU of Redis, a route", 16.5 MICROS;
    intent_service: "CPU of the service, an intent", 15.0 MICROS;
    route_service: "CPU of the service, a route", 5.5 MICROS;
}

/// The payload of the intents whose sizes were measured, in bytes.
pub const MEASURED_PAYLOAD_BYTES: f64 = 246.0;

/// The benchmark run from which processor times and the rate are taken.
#[derive(Clone, Copy, Debug)]
pub struct BenchmarkRun {
    /// The date of the run.
    pub date: &'static str,
    /// The processor model.
    pub machine: &'static str,
    /// The number of processor cores.
    pub cores: f64,
    /// The description of the run, as a link in docs/capacity.md.
    pub page: &'static str,
    /// Intents per second that one installation accepted and published, rounded down.
    pub intents_per_second: f64,
    /// The number of routes of each intent.
    pub routes: f64,
}

/// The last run.
pub const RUN: BenchmarkRun = BenchmarkRun {
    date: "2026-11-21",
    machine: "AMD EPYC under KVM",
    cores: 2.0,
    page: "[performance.md](performance.md#throughput)",
    intents_per_second: 9_000.0,
    routes: 4.0,
};

impl BenchmarkRun {
    /// Routes per second in the run.
    pub const fn routes_per_second(&self) -> f64 {
        self.intents_per_second * self.routes
    }
}
