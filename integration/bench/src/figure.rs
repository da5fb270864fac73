//! Measured figures, and the goals that they are compared with.

use crate::chart::FigureChart;

/// The factor that replaces a goal if the baseline misses the goal on this machine: the service may take this
/// multiple of the baseline's figure.
const BASELINE_FACTOR: f64 = 1.5;

/// The figures of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct ReportSection {
    /// The subject of the measurement, and the method.
    pub(crate) title: String,
    /// The results.
    pub(crate) figures: Vec<Figure>,
    /// Some of the results as charts.
    pub(crate) charts: Vec<FigureChart>,
}

/// A figure of a scenario.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// The measured quantity, in a few words.
    pub(crate) name: String,
    /// The result.
    pub(crate) value: f64,
    /// The unit of the value: `ms`, `intents/s`, `%`, `x` for a ratio.
    pub(crate) unit: &'static str,
    /// The minimum and the maximum of the rounds whose median `value` is.
    pub(crate) range: Option<(f64, f64)>,
    /// The goal in words, and true if the value meets it.
    pub(crate) goal: Option<(String, bool)>,
}

impl Figure {
    /// A figure without a goal.
    pub(crate) fn shown(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, range: None, goal: None }
    }

    /// Adds the range of the rounds whose median the value is.
    pub(crate) fn of_rounds(mut self, rounds: impl IntoIterator<Item = f64>) -> Self {
        let (least, most) = rounds
            .into_iter()
            .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
        // One round has no range.
        self.range = (least < most).then_some((least, most));
        self
    }

    /// Adds the goal that the value is at most `bound`.
    pub(crate) fn at_most(self, bound: f64) -> Self {
        let goal = format!("at most {bound} {}", self.unit);
        self.judged(goal, |value| value <= bound)
    }

    /// Adds the goal that the value is at most `bound`. If even the baseline misses that on this machine, the
    /// goal is a multiple of the baseline's figure.
    pub(crate) fn at_most_or_near(self, bound: f64, baseline: f64) -> Self {
        if baseline <= bound {
            return self.at_most(bound);
        }
        let (unit, allowed) = (self.unit, baseline * BASELINE_FACTOR);
        let goal = format!(
            "at most {allowed:.2} {unit}: {BASELINE_FACTOR}x the baseline, which misses {bound} {unit}"
        );
        self.judged(goal, |value| value <= allowed)
    }

    /// Adds the goal that the value is below `bound`.
    pub(crate) fn under(self, bound: f64) -> Self {
        let goal = format!("under {bound} {}", self.unit);
        self.judged(goal, |value| value < bound)
    }

    /// Adds the goal that the value is at least `bound`.
    pub(crate) fn at_least(self, bound: f64) -> Self {
        let goal = format!("at least {bound} {}", self.unit);
        self.judged(goal, |value| value >= bound)
    }

    /// Adds the goal that the value is within these bounds.
    pub(crate) fn between(self, least: f64, most: f64) -> Self {
        let goal = format!("{least:.0} to {most:.0} {}", self.unit);
        self.judged(goal, |value| (least..=most).contains(&value))
    }

    fn judged(mut self, goal: String, is_met: impl Fn(f64) -> bool) -> Self {
        self.goal = Some((goal, is_met(self.value)));
        self
    }
}
