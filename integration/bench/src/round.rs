//! Rounds of whoever brings things through: how many a second, and how much processor time each of them took.

use std::time::Duration;

use crate::chart::{Bars, Chart};
use crate::figure::Figure;
use crate::measure::{Cpu, median};

/// One round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Intents or routes.
    pub(crate) per_second: f64,
    /// Microseconds for each of them.
    pub(crate) postgres: f64,
    pub(crate) redis: f64,
    pub(crate) own: f64,
}

impl Round {
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

/// Several, of one party.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    /// Who.
    pub(crate) name: String,
    /// What is counted: `intent` or `route`.
    unit: Unit,
    rounds: Vec<Round>,
}

/// What a party brings through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Intent,
    Route,
}

impl Unit {
    fn rate(self) -> &'static str {
        match self {
            Self::Intent => "intents/s",
            Self::Route => "routes/s",
        }
    }

    fn micros(self) -> &'static str {
        match self {
            Self::Intent => "µs/intent",
            Self::Route => "µs/route",
        }
    }
}

impl Rounds {
    pub(crate) fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self { name: name.into(), unit, rounds: Vec::new() }
    }

    pub(crate) fn push(&mut self, round: Round) {
        self.rounds.push(round);
    }

    /// The median of one figure.
    pub(crate) fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }

    pub(crate) fn rate(&self) -> f64 {
        self.median(|round| round.per_second)
    }

    /// How fast, with `what` that is.
    pub(crate) fn speed(&self, what: &str) -> Figure {
        self.figure(what, self.unit.rate(), |round| round.per_second)
    }

    /// PostgreSQL's, Redis's, its own, and all of it.
    pub(crate) fn cpu(&self) -> [Figure; 4] {
        let unit = self.unit.micros();
        [
            self.figure("CPU of PostgreSQL", unit, |round| round.postgres),
            self.figure("CPU of Redis", unit, |round| round.redis),
            self.figure("own CPU", unit, |round| round.own),
            self.figure("CPU in all", unit, Round::whole),
        ]
    }

    fn figure(&self, what: &str, unit: &'static str, of: impl Fn(&Round) -> f64 + Copy) -> Figure {
        Figure::shown(format!("{}: {what}", self.name), self.median(of), unit)
            .of_rounds(self.rounds.iter().map(of))
    }

    /// How many times as fast as `other`, which ran in turn with it.
    pub(crate) fn times(&self, name: impl Into<String>, other: &Self) -> Figure {
        let each = self.rounds.iter().zip(&other.rounds);
        Figure::shown(name, self.rate() / other.rate(), "x")
            .of_rounds(each.map(|(one, other)| one.per_second / other.per_second))
    }
}

/// Rates of several parties beside each other.
pub(crate) fn rates<'a>(
    file: &'static str,
    title: &'static str,
    parties: impl IntoIterator<Item = &'a Rounds>,
) -> Chart {
    let parties: Vec<&Rounds> = parties.into_iter().collect();
    let unit = parties.first().map_or("", |party| party.unit.rate());
    let bars = parties.iter().map(|party| (party.name.clone(), vec![party.rate()])).collect();
    Chart::Bars(Bars { file, title, unit, parts: &["rate"], bars })
}

/// Processor time of several parties beside each other.
pub(crate) fn costs<'a>(
    file: &'static str,
    title: &'static str,
    parties: impl IntoIterator<Item = &'a Rounds>,
) -> Chart {
    let parties: Vec<&Rounds> = parties.into_iter().collect();
    let unit = parties.first().map_or("", |party| party.unit.micros());
    let of = |party: &&Rounds| {
        let parts: [fn(&Round) -> f64; 3] = [|round| round.postgres, |round| round.redis, |round| round.own];
        (party.name.clone(), parts.map(|part| party.median(part)).to_vec())
    };
    let bars = parties.iter().map(of).collect();
    Chart::Bars(Bars { file, title, unit, parts: &["PostgreSQL", "Redis", "own"], bars })
}
