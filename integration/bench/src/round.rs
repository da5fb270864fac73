//! Rounds of a contender or of the service: the rate, and the processor time per intent or route.

use std::time::Duration;

use crate::chart::{BarChart, FigureChart};
use crate::figure::Figure;
use crate::measure::{Cpu, median};

/// One round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenchRound {
    /// Intents or routes per second.
    pub(crate) per_second: f64,
    /// Processor time for each intent or route, in microseconds.
    pub(crate) postgres: f64,
    pub(crate) redis: f64,
    pub(crate) own: f64,
}

impl BenchRound {
    pub(crate) fn of(count: u32, time: Duration, cpu: Cpu) -> Self {
        let each = |micros: u64| micros as f64 / f64::from(count);
        Self {
            per_second: f64::from(count) / time.as_secs_f64(),
            postgres: each(cpu.postgres),
            redis: each(cpu.redis),
            own: each(cpu.own),
        }
    }

    pub(crate) fn whole(&self) -> f64 {
        self.postgres + self.redis + self.own
    }
}

/// The rounds of one contender.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    /// The name of the contender.
    pub(crate) name: String,
    /// The unit that is counted.
    unit: Unit,
    rounds: Vec<BenchRound>,
}

/// The unit that a round counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Intent,
    Route,
    Event,
}

impl Unit {
    fn rate(self) -> &'static str {
        match self {
            Self::Intent => "intents/s",
            Self::Route => "routes/s",
            Self::Event => "events/s",
        }
    }

    fn micros(self) -> &'static str {
        match self {
            Self::Intent => "µs/intent",
            Self::Route => "µs/route",
            Self::Event => "µs/event",
        }
    }
}

impl Rounds {
    pub(crate) fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self { name: name.into(), unit, rounds: Vec::new() }
    }

    pub(crate) fn push(&mut self, round: BenchRound) {
        self.rounds.push(round);
    }

    /// The median of one figure.
    pub(crate) fn median(&self, of: impl Fn(&BenchRound) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }

    pub(crate) fn rate(&self) -> f64 {
        self.median(|round| round.per_second)
    }

    /// The rate of each round.
    pub(crate) fn rates(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|round| round.per_second)
    }

    /// The rate, as a figure named `what`.
    pub(crate) fn speed(&self, what: &str) -> Figure {
        self.figure(what, self.unit.rate(), |round| round.per_second)
    }

    /// Processor time of PostgreSQL, of Redis, of the contender itself, and in total.
    pub(crate) fn cpu(&self) -> [Figure; 4] {
        let unit = self.unit.micros();
        [
            self.figure("CPU of PostgreSQL", unit, |round| round.postgres),
            self.figure("CPU of Redis", unit, |round| round.redis),
            self.figure("own CPU", unit, |round| round.own),
            self.figure("CPU in total", unit, BenchRound::whole),
        ]
    }

    fn figure(&self, what: &str, unit: &'static str, of: impl Fn(&BenchRound) -> f64 + Copy) -> Figure {
        Figure::shown(format!("{}: {what}", self.name), self.median(of), unit)
            .of_rounds(self.rounds.iter().map(of))
    }

    /// The ratio of its rate to that of `other`, whose rounds alternated with its own.
    pub(crate) fn times(&self, name: impl Into<String>, other: &Self) -> Figure {
        let each = self.rounds.iter().zip(&other.rounds);
        Figure::shown(name, self.rate() / other.rate(), "x")
            .of_rounds(each.map(|(one, other)| one.per_second / other.per_second))
    }
}

/// A chart of the rates of several contenders.
pub(crate) fn rates<'a>(
    file: &'static str,
    title: &'static str,
    contenders: impl IntoIterator<Item = &'a Rounds>,
) -> FigureChart {
    let contenders: Vec<&Rounds> = contenders.into_iter().collect();
    let unit = contenders.first().map_or("", |contender| contender.unit.rate());
    let bars = contenders.iter().map(|contender| (contender.name.clone(), vec![contender.rate()])).collect();
    FigureChart::Bars(BarChart { file, title, unit, parts: &["rate"], bars })
}

/// A chart of the processor time of several contenders.
pub(crate) fn costs<'a>(
    file: &'static str,
    title: &'static str,
    contenders: impl IntoIterator<Item = &'a Rounds>,
) -> FigureChart {
    let contenders: Vec<&Rounds> = contenders.into_iter().collect();
    let unit = contenders.first().map_or("", |contender| contender.unit.micros());
    let of = |contender: &&Rounds| {
        let parts: [fn(&BenchRound) -> f64; 3] =
            [|round| round.postgres, |round| round.redis, |round| round.own];
        (contender.name.clone(), parts.map(|part| contender.median(part)).to_vec())
    };
    let bars = contenders.iter().map(of).collect();
    FigureChart::Bars(BarChart { file, title, unit, parts: &["PostgreSQL", "Redis", "own"], bars })
}
