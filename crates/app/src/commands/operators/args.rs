//! Arguments that several commands share.

use std::str::FromStr;
use std::time::Duration;

use ambient::Timestamp;
use clap::Args;
use domain::query::{DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS, PageLimit, Place};

use crate::commands::Failure;
use crate::commands::output::printable;
use crate::config::duration;

/// How to print.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How to print tables.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct TableOutput {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print whole tables, however narrow the terminal is
    #[arg(long, conflicts_with = "json")]
    pub(crate) wide: bool,
}

/// A page of a list, and how to print it.
#[derive(Args, Debug, Clone)]
pub(crate) struct Paging {
    /// The most items, up to 200
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PAGE_ITEMS, value_parser = parse_limit)]
    limit: usize,
    /// The start of the page, as printed at the end of the page before
    #[arg(long, value_name = "CURSOR", value_parser = parse_text)]
    cursor: Option<String>,
    #[command(flatten)]
    pub(crate) output: TableOutput,
}

impl Paging {
    /// The most items of the page.
    pub(crate) fn limit(&self) -> PageLimit {
        PageLimit::new(self.limit).unwrap_or_default()
    }

    /// The cursor at which the page begins, in a list with this filter.
    pub(crate) fn after<P: Place>(&self, filter: &P::Filter) -> Result<Option<P>, Failure> {
        let place = self.cursor.as_deref().map(|cursor| P::from_cursor(cursor, filter)).transpose();
        place.map_err(|_| {
            Failure::Usage(
                "error: --cursor is not one of this list with these conditions: take both from the line that the page \
                 before printed at its end"
                    .to_owned(),
            )
        })
    }
}

/// A period.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct TimeRange {
    /// Only then or later: a time such as 2026-04-02T09:30:00Z, or how long ago, such as 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,
    /// Only before then
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
}

impl TimeRange {
    /// The start (inclusive) and the end (exclusive) of the range, with relative times resolved at `now`. A
    /// range that ends before it begins is a usage error.
    pub(crate) fn at(self, now: Timestamp) -> Result<(Option<Timestamp>, Option<Timestamp>), Failure> {
        let time = |moment: Option<Moment>| moment.map(|moment| moment.before(now));
        match (time(self.since), time(self.until)) {
            (Some(since), Some(until)) if since > until => {
                Err(Failure::Usage(format!("error: --since is {since}, which is after --until, {until}")))
            }
            range => Ok(range),
        }
    }
}

/// A command line that continues a list.
#[derive(Debug)]
pub(crate) struct CommandLine(String);

impl CommandLine {
    /// Creates a command line without options.
    pub(crate) fn new(command: &str) -> Self {
        Self(command.to_owned())
    }

    /// Adds an option if it has a value.
    pub(crate) fn option(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.0 += &format!(" {name} {}", quoted(&value.to_string()));
        }
        self
    }

    /// Adds a flag if it is set.
    pub(crate) fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.0 += &format!(" {name}");
        }
        self
    }

    /// Adds an option once for each value.
    pub(crate) fn options(self, name: &str, values: &[String]) -> Self {
        values.iter().fold(self, |line, value| line.option(name, Some(value)))
    }

    /// The command line as text.
    pub(crate) fn into_text(self) -> String {
        self.0
    }

    /// Prints the command for the next page to standard error. It has the same conditions, with times as they
    /// were resolved this time.
    pub(crate) fn print_next(self, paging: &Paging, cursor: Option<String>) {
        if cursor.is_some() {
            let line = self
                .option("--limit", (paging.limit != DEFAULT_PAGE_ITEMS).then_some(paging.limit))
                .flag("--json", paging.output.json)
                .flag("--wide", paging.output.wide)
                .option("--cursor", cursor);
            eprintln!("next page: {}", line.0);
        }
    }
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if printable(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    // Characters that a terminal would act on cannot be printed as they are. In `$'…'` their bytes are octal
    // numbers, which every shell that supports `$'…'` reads.
    let escaped = |c: char| match c {
        '\\' | '\'' => format!("\\{c}"),
        c if printable(c.encode_utf8(&mut [0; 4])).len() == c.len_utf8() => c.to_string(),
        c => c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\{byte:03o}")).collect(),
    };
    format!("$'{}'", text.chars().map(escaped).collect::<String>())
}

/// Parses a text that must not be empty: an empty value is usually an unset shell variable.
pub(crate) fn parse_text(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().and_then(PageLimit::new);
    limit.map(PageLimit::get).ok_or_else(|| format!("it takes a number from 1 to {MAX_PAGE_ITEMS}"))
}

/// A time, either absolute or relative to now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// An absolute time.
    At(Timestamp),
    /// A duration before now.
    Ago(Duration),
}

impl Moment {
    /// The absolute time, resolved at `now`.
    pub(crate) fn before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(age) => now - age,
        }
    }
}

/// Parses RFC 3339, or a duration: whole days such as `7d`, or the syntax of configuration, such as `90m`.
impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
        if let Ok(at) = text.parse() {
            return Ok(Self::At(at));
        }
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
        let age = match days {
            Some(days) => Some(Duration::from_secs(u64::from(days) * SECONDS_PER_DAY)),
            None => duration::parse(text).ok(),
        };
        age.map(Self::Ago).ok_or_else(|| {
            "it takes a time such as 2026-04-02T09:30:00Z, or how long ago it was, such as 90m, 2h or 7d"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_an_age() {
        let now: Timestamp = "2026-04-02T12:00:00Z".parse().expect("a time");
        for (text, expected) in [
            ("2026-04-02T11:30:00+02:00", "2026-04-02T09:30:00Z"),
            ("2h", "2026-04-02T10:00:00Z"),
            ("1h30m", "2026-04-02T10:30:00Z"),
            ("7d", "2026-03-26T12:00:00Z"),
            ("0d", "2026-04-02T12:00:00Z"),
        ] {
            let moment: Moment = text.parse().expect(text);
            assert_eq!(moment.before(now), expected.parse().expect("a time"), "{text}");
        }
        for wrong in ["", "yesterday", "7", "d", "-1d", "1.5d", "2026-04-02", "7days"] {
            assert!(wrong.parse::<Moment>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_wrong_usage() {
        let now: Timestamp = "2026-04-02T12:00:00Z".parse().expect("a time");
        let range =
            |since: &str, until: &str| TimeRange { since: since.parse().ok(), until: until.parse().ok() };
        let (since, until) = range("2h", "1h").at(now).expect("it is a range");
        assert_eq!(since, "2026-04-02T10:00:00Z".parse().ok());
        assert_eq!(until, "2026-04-02T11:00:00Z".parse().ok());
        assert!(range("1h", "1h").at(now).is_ok() && TimeRange::default().at(now).is_ok());
        assert!(matches!(range("1h", "2h").at(now), Err(Failure::Usage(_))));
    }

    #[test]
    fn the_line_that_continues_a_list_can_be_pasted_into_a_shell() {
        let line = CommandLine::new("notification list")
            .option("--producer", Some("game_master"))
            .option("--recipient", Some("o'hara $x"))
            .option("--type", None::<&str>)
            .flag("--json", true);
        assert_eq!(line.0, r"notification list --producer game_master --recipient 'o'\''hara $x' --json");
    }

    #[test]
    fn a_shell_reads_the_text_that_was_quoted() {
        let texts =
            ["", "plain", "o'hara $x `id`", r"a\b", "a\nb'c\\d", "\u{1b}[31m1", "a\u{202e}b\u{2028}ü"];
        for text in texts {
            let quoted = quoted(text);
            assert_eq!(printable(&quoted), quoted, "a terminal acts upon none of it");
            let script = format!("printf %s {quoted}");
            let output =
                std::process::Command::new("bash").args(["-c", &script]).output().expect("bash is there");
            assert_eq!(String::from_utf8(output.stdout).expect("text"), text, "{quoted}");
        }
    }

    #[test]
    fn a_page_has_1_to_200_items() {
        assert_eq!([parse_limit("1"), parse_limit("200")], [Ok(1), Ok(200)]);
        for wrong in ["0", "201", "-1", "ten", ""] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
