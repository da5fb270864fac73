//! Reads variables one by one, and notes every problem instead of stopping at the first.
//!
//! Each reading method notes the reason and returns `None` if a value cannot be used. A section is `None` if
//! any of its parts is. The configuration is returned only if no problem was noted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use config::{Environment, Source};

use super::duration;
use super::knob::{Knob, Takes};
use super::knobs::{ADMIN_EMAILS_PREFIX, KNOBS, RETIRED};
use super::minimums::MINIMUMS;
use super::problem::{ConfigErrors, Problem};
use super::read_bounded;

/// The minimum similarity of a suggested name to an unknown one.
const SIMILAR: f64 = 0.85;

/// The prefixes of variables that belong to the service. Unknown variables with other prefixes are ignored.
const OUR_PREFIXES: [&str; 2] = ["NOTIFICATION_", "STATE_PROXY_"];

/// The variables of a process, and the notes on them.
#[derive(Debug, Default)]
pub(super) struct Reader {
    values: HashMap<String, String>,
    /// Paths of files that hold a secret, by the name of the variable that the file replaces.
    files: HashMap<&'static str, String>,
    /// Variables that are not a knob and begin with the prefix of the administrators' variables, by name.
    admin_emails: BTreeMap<String, String>,
    durations: HashMap<&'static str, Duration>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    effective: Vec<(String, String)>,
}

impl Reader {
    /// Sorts the variables into known, retired and unknown ones. An empty variable counts as not set.
    pub(super) fn new(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut reader = Self::default();
        let mut known = HashMap::new();
        for (name, value) in vars {
            if KNOBS.iter().any(|knob| knob.name == name) {
                known.insert(name, value);
            } else if let Some(knob) = KNOBS.iter().find(|knob| knob.file_variable().as_ref() == Some(&name))
            {
                if !value.is_empty() {
                    reader.files.insert(knob.name, value);
                }
            } else if value.is_empty() || !OUR_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            } else if let Some((_, instead)) = RETIRED.iter().find(|(retired, _)| *retired == name) {
                reader.problems.push(Problem::other(&name, format!("is retired: {instead}")));
            } else if name.starts_with(ADMIN_EMAILS_PREFIX) {
                reader.admin_emails.insert(name, value);
            } else {
                reader.warn_unknown(&name, KNOBS.iter().map(|knob| knob.name));
            }
        }
        match collect(known) {
            Ok(values) => reader.values = values,
            Err(error) => {
                reader.problems.push(Problem::other("the environment", format!("cannot be read: {error}")))
            }
        }
        reader
    }

    /// Reads `knob` with `parse`, whose error is shown as the reason. `show` returns the text for
    /// `check-config`.
    pub(super) fn read<T, E: fmt::Display>(
        &mut self,
        knob: &'static Knob,
        parse: impl FnOnce(&str) -> Result<T, E>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let value = match self.value(knob) {
            Ok(Some(value)) => value,
            Ok(None) => return self.read_default(knob, parse, show),
            Err(problem) => return self.note(knob, Err(problem), show),
        };
        let outcome = match hidden_character(&value) {
            Some(complaint) => Err(Problem::unusable(knob, &value, complaint)),
            None => parse(&value).map_err(|reason| Problem::unusable(knob, &value, reason)),
        };
        self.note(knob, outcome, show)
    }

    /// The value of `knob`, from the environment or from the file that the environment names.
    fn value(&self, knob: &'static Knob) -> Result<Option<String>, Problem> {
        let given = self.values.get(&knob.name.to_lowercase()).cloned();
        let Some(path) = self.files.get(knob.name) else { return Ok(given) };
        let variable = format!("{}_FILE", knob.name);
        if given.is_some() {
            return Err(Problem::other(knob.name, format!("is set, and so is {variable}: set one of them")));
        }
        let text = std::fs::File::open(path).and_then(read_bounded).map_err(|error| {
            Problem::other(&variable, format!("names {path}, which cannot be read: {error}"))
        })?;
        match text.strip_suffix('\n').unwrap_or(&text) {
            "" => Err(Problem::other(&variable, format!("names {path}, which is empty"))),
            value => Ok(Some(value.to_owned())),
        }
    }

    fn read_default<T, E: fmt::Display>(
        &mut self,
        knob: &'static Knob,
        parse: impl FnOnce(&str) -> Result<T, E>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        let outcome = match knob.required {
            true => Err(Problem::missing(knob)),
            false => parse(knob.default).map_err(|reason| Problem::unusable(knob, knob.default, reason)),
        };
        self.note(knob, outcome, show)
    }

    fn note<T>(
        &mut self,
        knob: &'static Knob,
        outcome: Result<T, Problem>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.show(knob.name, show(&value));
                Some(value)
            }
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// Reads a duration within the bounds of `knob`.
    pub(super) fn duration(&mut self, knob: &'static Knob) -> Option<Duration> {
        let parse = |text: &str| {
            let value = duration::parse(text).map_err(|error| error.to_string())?;
            match knob.takes {
                Takes::Duration(min, _) if value < min => Err("it is too short".to_owned()),
                Takes::Duration(_, max) if value > max => Err("it is too long".to_owned()),
                _ => Ok(value),
            }
        };
        let value = self.read(knob, parse, |value| duration::format(*value))?;
        self.durations.insert(knob.name, value);
        Some(value)
    }

    /// Leaves durations out of the checks of lower bounds, because the feature that uses them is off.
    pub(super) fn ignore_durations(&mut self, knobs: &[&'static Knob]) {
        self.durations.retain(|name, _| knobs.iter().all(|knob| knob.name != *name));
    }

    /// Notes that `knob` is not set, although this configuration requires it.
    pub(super) fn missing(&mut self, knob: &'static Knob) {
        self.problems.push(Problem::missing(knob));
    }

    /// Reads a whole number within the bounds of `knob`.
    pub(super) fn number<N: TryFrom<u64> + fmt::Display>(&mut self, knob: &'static Knob) -> Option<N> {
        let parse = |text: &str| {
            if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err("not a whole number");
            }
            let value: u64 = text.parse().map_err(|_| "it is too large")?;
            match knob.takes {
                Takes::Number(min, _) if value < min => Err("it is too small"),
                Takes::Number(_, max) if value > max => Err("it is too large"),
                _ => N::try_from(value).map_err(|_| "it is too large"),
            }
        };
        self.read(knob, parse, N::to_string)
    }

    /// Reads one of the words of `knob`; `Some(None)` if the value is empty and may be.
    pub(super) fn word(&mut self, knob: &'static Knob) -> Option<Option<&'static str>> {
        let parse = |text: &str| match knob.takes {
            Takes::Word(words) => match words.iter().find(|word| word.eq_ignore_ascii_case(text)) {
                None if text.is_empty() && knob.default.is_empty() => Ok(None),
                None => Err("it is not known"),
                Some(word) => Ok(Some(*word)),
            },
            _ => Err("it has no list of words"),
        };
        self.read(knob, parse, |word| word.unwrap_or_default().to_owned())
    }

    /// Adds a line to the effective configuration.
    pub(super) fn show(&mut self, name: &str, value: String) {
        self.effective.push((name.to_owned(), value));
    }

    /// Notes a problem that does not belong to a single knob.
    pub(super) fn problem(&mut self, variable: &str, text: impl Into<String>) {
        self.problems.push(Problem::other(variable, text));
    }

    /// Notes a harmless oddity.
    pub(super) fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    /// Removes and returns the administrators' variables that were set, by name.
    pub(super) fn take_admin_emails(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.admin_emails)
    }

    /// Warns that `name` has no effect, and suggests the most similar of `known`.
    pub(super) fn warn_unknown<'a>(&mut self, name: &'a str, known: impl Iterator<Item = &'a str>) {
        // The common prefixes would make all names similar.
        let core = |name: &'a str| {
            let name = name.trim_start_matches(ADMIN_EMAILS_PREFIX);
            OUR_PREFIXES.iter().fold(name, |name, prefix| name.trim_start_matches(prefix))
        };
        let likeness = |candidate| strsim::jaro_winkler(core(name), core(candidate));
        let candidates = known.map(|candidate| (likeness(candidate), candidate));
        let nearest =
            candidates.filter(|(likeness, _)| *likeness >= SIMILAR).max_by(|a, b| a.0.total_cmp(&b.0));
        let guess = nearest.map(|(_, candidate)| format!("; did you mean {candidate}?")).unwrap_or_default();
        self.warnings.push(format!("{name} is not a variable of this service and has no effect{guess}"));
    }

    /// Returns the effective configuration and the warnings, or all problems.
    pub(super) fn finish(mut self) -> Result<Notes, ConfigErrors> {
        self.check_minimums();
        self.problems.sort_by_key(|problem| position(problem.variable()));
        self.warnings.sort();
        if !self.problems.is_empty() {
            return Err(ConfigErrors { problems: self.problems, warnings: self.warnings });
        }
        self.effective.sort_by_key(|(name, _)| position(name));
        Ok(Notes { warnings: self.warnings, effective: self.effective })
    }

    fn check_minimums(&mut self) {
        for minimum in MINIMUMS {
            let read = |knob: &Knob| self.durations.get(knob.name).copied();
            let Some(value) = read(minimum.knob) else { continue };
            let terms = minimum.terms.iter().map(|(times, knob)| Some(read(knob)?.saturating_mul(*times)));
            let Some(least) = terms.sum::<Option<Duration>>() else { continue };
            let least = least.saturating_add(minimum.margin);
            if value < least {
                let text = format!(
                    "is {}: it must be at least {}, which is {}, because {}",
                    duration::format(value),
                    minimum.sum(|knob| knob.name.to_owned()),
                    duration::format(least),
                    minimum.because,
                );
                self.problems.push(Problem::other(minimum.knob.name, text));
            }
        }
    }
}

/// The notes of a reading without problems.
#[derive(Debug)]
pub(super) struct Notes {
    pub(super) warnings: Vec<String>,
    pub(super) effective: Vec<(String, String)>,
}

/// The index of a variable in [`KNOBS`]. Administrators' and unknown variables come last.
fn position(name: &str) -> usize {
    KNOBS.iter().position(|knob| knob.name == name).unwrap_or(KNOBS.len())
}

/// The variables that are set, by name in lower case, as the `config` crate returns them.
fn collect(vars: HashMap<String, String>) -> Result<HashMap<String, String>, config::ConfigError> {
    let environment = Environment::default().ignore_empty(true).source(Some(vars));
    environment.collect()?.into_iter().map(|(name, value)| Ok((name, value.into_string()?))).collect()
}

/// The complaint about a value with a character that an operator cannot see.
fn hidden_character(value: &str) -> Option<&'static str> {
    if value.contains(char::REPLACEMENT_CHARACTER) {
        Some("it is not UTF-8")
    } else if value.ends_with(['\n', '\r']) {
        Some("it ends with a line break, as files of secrets often do")
    } else if value.chars().any(char::is_control) {
        Some("it holds a control character")
    } else if value.starts_with(char::is_whitespace) || value.ends_with(char::is_whitespace) {
        Some("it begins or ends with white space")
    } else {
        None
    }
}
