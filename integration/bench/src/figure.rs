//! Measured figures, and the goals they are held against.

use crate::chart::Chart;

/// The figures of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// What was driven, and how.
    pub(crate) title: String,
    /// What came of it.
    pub(crate) figures: Vec<Figure>,
    /// Some of it as pictures.
    pub(crate) charts: Vec<Chart>,
}

/// A figure of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// What was measured, in a few words.
    pub(crate) name: String,
    /// How much.
    pub(crate) value: f64,
    /// Of what: `ms`, `intents/s`, `%`, `x` for a ratio.
    pub(crate) unit: &'static str,
    /// What it must be, in words, and whether it is.
    pub(crate) goal: Option<(String, bool)>,
}

impl Figure {
    /// A figure that is only shown.
    pub(crate) fn shown(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, goal: None }
    }

    /// A figure that must not be above `bound`.
    pub(crate) fn at_most(name: impl Into<String>, value: f64, unit: &'static str, bound: f64) -> Self {
        let goal = Some((format!("at most {bound} {unit}"), value <= bound));
        Self { name: name.into(), value, unit, goal }
    }

    /// A figure that must not be below `bound`.
    pub(crate) fn at_least(name: impl Into<String>, value: f64, unit: &'static str, bound: f64) -> Self {
        let goal = Some((format!("at least {bound} {unit}"), value >= bound));
        Self { name: name.into(), value, unit, goal }
    }
}
