//! The errors of a configuration, one line for each.

use std::fmt;

use super::knob::Knob;

/// The maximum length of a value that a message quotes, in characters.
const SHOWN: usize = 80;

/// One error of the configuration, for the operator who has to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    variable: String,
    text: String,
}

impl Problem {
    /// The problem that a required variable is not set.
    pub(super) fn missing(knob: &Knob) -> Self {
        Self::other(knob.name, format!("is required and not set; it takes {}", knob.takes))
    }

    /// The problem that `knob` does not accept `value`. The message quotes the value unless it is a secret or
    /// might contain one.
    pub(super) fn unusable(knob: &Knob, value: &str, reason: impl fmt::Display) -> Self {
        let may_hold_a_password = knob.secret || value.contains('@');
        let got =
            if may_hold_a_password { "(not shown, it may hold a password)".to_owned() } else { quote(value) };
        Self::other(knob.name, format!("is {got}: {reason}; it takes {}", knob.takes))
    }

    /// Any other problem of `variable`.
    pub(super) fn other(variable: &str, text: impl Into<String>) -> Self {
        Self { variable: variable.to_owned(), text: text.into() }
    }

    /// The variable to fix.
    pub fn variable(&self) -> &str {
        &self.variable
    }
}

/// The beginning of `value` in quotes, with control characters escaped.
pub(super) fn quote(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variable, self.text)
    }
}

/// All errors of a configuration. `Display` writes one line for each problem, then one for each warning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// At least one, in the order of docs/config.md.
    pub problems: Vec<Problem>,
    /// Oddities that are harmless by themselves; often the misspelt name of a missing variable.
    pub warnings: Vec<String>,
}

impl ConfigErrors {
    /// Adds the problems of another reading of the same variables.
    pub(crate) fn and(mut self, other: Self) -> Self {
        for problem in other.problems {
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
        self
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.problems.iter().map(|problem| format!("error: {problem}"));
        let lines = lines.chain(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}
