//! Reads variables one by one, and notes every problem instead of stopping at the first.
//!
//! A variable is `None` if its value cannot be used, a section if any of its parts is. The configuration is
//! returned only if no problem was noted. A variable that several sections read is noted once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use config::{Environment, Source};

use super::duration;
use super::knob::Knob;
use super::knobs::{ADMIN_EMAILS_PREFIX, KNOBS, RETIRED};
use super::minimums::MINIMUMS;
use super::problem::{ConfigErrors, Problem};
use super::value::Value;
use super::{Loaded, read_bounded};

/// The minimum similarity of a suggested name to an unknown one.
const SIMILAR: f64 = 0.85;

/// The prefixes of variables that belong to the service. Unknown variables with other prefixes are ignored.
const OUR_PREFIXES: [&str; 2] = ["NOTIFICATION_", "STATE_PROXY_"];

/// A part of the configuration.
pub trait Section: Sized {
    /// Reads all its variables, so that every problem is noted. Returns `None` if one was noted that concerns
    /// this section.
    fn read(reader: &mut Reader) -> Option<Self>;
}

/// Sections that are read together, for a command that needs both.
impl<A: Section, B: Section> Section for (A, B) {
    fn read(reader: &mut Reader) -> Option<Self> {
        let (first, second) = (A::read(reader), B::read(reader));
        Some((first?, second?))
    }
}

/// The variables of a process, and the notes on them.
#[derive(Debug, Default)]
pub struct Reader {
    values: HashMap<String, String>,
    /// Paths of files that hold a secret, by the name of the variable that the file replaces.
    files: HashMap<&'static str, String>,
    /// Variables that are not a knob and begin with the prefix of the administrators' variables, by name.
    admin_emails: BTreeMap<String, String>,
    /// True while the section that is read is off.
    is_off: bool,
    /// The variables that a section reads that is not off.
    in_use: HashSet<&'static str>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    effective: Vec<(String, String)>,
    /// The names of the effective variables whose value differs from the default.
    changed: HashSet<String>,
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

    /// Reads a variable. Returns `None` if its value cannot be used.
    pub(super) fn get<T: Value>(&mut self, knob: &'static Knob) -> Option<T> {
        if !self.is_off {
            self.in_use.insert(knob.name);
        }
        match self.parsed::<T>(knob) {
            Ok(value) => {
                if self.effective.iter().all(|(name, _)| name != knob.name) {
                    let default = T::parse(knob.default, &knob.takes).ok().filter(|_| !knob.required);
                    self.show(
                        knob.name,
                        value.show(),
                        &default.map(|default| default.show()).unwrap_or_default(),
                    );
                }
                Some(value)
            }
            Err(problem) => {
                self.note(problem);
                None
            }
        }
    }

    fn parsed<T: Value>(&self, knob: &'static Knob) -> Result<T, Problem> {
        let text = match self.value(knob)? {
            None if knob.required => return Err(Problem::missing(knob)),
            None => knob.default.to_owned(),
            Some(text) => text,
        };
        let value = match hidden_character(&text) {
            Some(complaint) => Err(complaint.to_owned()),
            None => T::parse(&text, &knob.takes),
        };
        value.map_err(|reason| Problem::unusable(knob, &text, reason))
    }

    /// Reads a section that only a set `switch` turns on. Of one that is off the values must be valid, but
    /// need neither be complete nor fit together.
    pub(super) fn get_switched<S: Section>(&mut self, switch: &'static Knob) -> Option<Option<S>> {
        if self.value(switch).is_ok_and(|text| text.is_none()) {
            self.is_off = true;
            S::read(self);
            self.is_off = false;
            return Some(None);
        }
        S::read(self).map(Some)
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

    fn note(&mut self, problem: Problem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Notes that `knob` is not set, although this configuration requires it.
    pub(super) fn missing(&mut self, knob: &'static Knob) {
        if !self.is_off {
            self.note(Problem::missing(knob));
        }
    }

    /// Returns the value of a variable that this configuration requires, or notes that it is not set.
    pub(super) fn required<T>(&mut self, knob: &'static Knob, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.missing(knob);
        }
        value
    }

    /// Adds a line to the effective configuration. `default` is the text of the default value.
    pub(super) fn show(&mut self, name: &str, value: String, default: &str) {
        if value != default {
            self.changed.insert(name.to_owned());
        }
        self.effective.push((name.to_owned(), value));
    }

    /// Notes a problem that does not belong to a single knob.
    pub(super) fn problem(&mut self, variable: &str, text: impl Into<String>) {
        if !self.is_off {
            self.note(Problem::other(variable, text));
        }
    }

    /// Notes a harmless oddity.
    pub(super) fn warn(&mut self, text: String) {
        if !self.is_off {
            self.warnings.push(text);
        }
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

    /// Returns the configuration that was read, or all problems.
    pub(super) fn finish<C>(mut self, config: Option<C>) -> Result<Loaded<C>, ConfigErrors> {
        self.check_minimums();
        self.problems.sort_by_key(|problem| position(problem.variable()));
        self.warnings.sort();
        self.effective.sort_by_key(|(name, _)| position(name));
        let Self { problems, warnings, effective, changed, .. } = self;
        match config {
            Some(config) if problems.is_empty() => Ok(Loaded { config, warnings, effective, changed }),
            // A missing part was noted as a problem.
            _ => Err(ConfigErrors { problems, warnings }),
        }
    }

    /// The value of a duration, if a section that is not off has read it.
    fn duration_in_use(&self, knob: &Knob) -> Option<Duration> {
        let shown = self.effective.iter().find(|(name, _)| name == knob.name)?;
        duration::parse(&shown.1).ok().filter(|_| self.in_use.contains(knob.name))
    }

    fn check_minimums(&mut self) {
        for minimum in MINIMUMS {
            let read = |knob: &Knob| self.duration_in_use(knob);
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
