//! What a terminal gets and a file does not: colours, and how far a long command is.

use std::io::{self, IsTerminal, Write};

use crate::commands::output::print_line;

/// The space between two columns.
const GAP: usize = 2;
/// The width of the bar of [`Progress`], in characters.
const BAR_WIDTH: u64 = 30;

/// How a text is meant; the later, the more it matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Tone {
    /// As any other.
    #[default]
    Plain,
    /// A heading.
    Strong,
    /// All is well.
    Good,
    /// It will be tried again, or waits.
    Warning,
    /// Someone has to act.
    Bad,
}

/// Whether text is coloured. The tone of a text is never all that tells it from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    /// Plain text.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { colour: false };

    /// For standard output with these variables: coloured on a terminal that can, unless `NO_COLOR` is set.
    pub(crate) fn of_stdout(vars: &[(String, String)]) -> Self {
        Self::new(vars, io::stdout().is_terminal())
    }

    fn new(vars: &[(String, String)], is_terminal: bool) -> Self {
        let value = |name: &str| vars.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        let refused =
            value("NO_COLOR").is_some_and(|value| !value.is_empty()) || value("TERM") == Some("dumb");
        Self { colour: is_terminal && !refused }
    }

    /// The text in the colour of its tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => None,
            Tone::Strong => Some("1"),
            Tone::Good => Some("32"),
            Tone::Warning => Some("33"),
            Tone::Bad => Some("31"),
        };
        match code {
            Some(code) if self.colour && !text.is_empty() => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}

/// A text in a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A text with a tone.
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Prints rows with their columns aligned.
pub(crate) fn print_cells(out: &mut impl Write, style: Style, rows: &[Vec<Cell>]) -> anyhow::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |cell: &Cell| cell.text.chars().count();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        // Nothing follows the last cell that has a text.
        let cells = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |last| last + 1);
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).take(cells).enumerate() {
            line += &style.paint(cell.tone, &cell.text);
            let padding = if at + 1 < cells { width + GAP - length(cell) } else { 0 };
            line.extend(std::iter::repeat_n(' ', padding));
        }
        print_line(out, &line)?;
    }
    Ok(())
}

/// How far a command is, on one line of a terminal; nothing where standard error is none.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    /// `None` if it is not known.
    total: Option<u64>,
    is_shown: bool,
}

impl Progress {
    /// Nothing of `total` is done yet; `what` says what is counted.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        Self { what, total: Some(total), is_shown: io::stderr().is_terminal() }
    }

    /// Nothing is done yet of a number that is not known.
    pub(crate) fn counting(what: &'static str) -> Self {
        Self { what, total: None, is_shown: io::stderr().is_terminal() }
    }

    /// So many are done. There may turn out to be more than the total.
    pub(crate) fn show(&self, done: u64) {
        if self.is_shown {
            // A terminal that takes nothing does not stop the work.
            let _ = write!(io::stderr(), "\r{}", self.line(done));
        }
    }

    /// Removes the line, so that what is printed next begins on an empty one.
    pub(crate) fn finish(self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }

    fn line(&self, done: u64) -> String {
        let Some(total) = self.total else { return format!("{done} {}", self.what) };
        let total = total.max(done).max(1);
        let full = done * BAR_WIDTH / total;
        let bar: String = (0..BAR_WIDTH).map(|at| if at < full { '#' } else { '.' }).collect();
        format!("[{bar}] {done} of {total} {}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        assert!(Style::new(&[], true).colour && !Style::new(&[], false).colour);
        assert!(!Style::new(&vars("NO_COLOR", "1"), true).colour);
        assert!(Style::new(&vars("NO_COLOR", ""), true).colour, "an empty variable counts as none");
        assert!(!Style::new(&vars("TERM", "dumb"), true).colour);
    }

    #[test]
    fn columns_are_aligned_with_and_without_colour() {
        let rows = [
            vec!["route".into(), Cell::new("status", Tone::Strong), "error".into()],
            vec!["r1".into(), Cell::new("failed", Tone::Bad), Cell::from("")],
            vec!["r-long".into(), "ok".into(), "none".into()],
        ];
        let printed = |style: Style| {
            let mut out = Vec::new();
            print_cells(&mut out, style, &rows).expect("memory takes it");
            String::from_utf8(out).expect("text")
        };
        let plain = "route   status  error\nr1      failed\nr-long  ok      none\n";
        assert_eq!(printed(Style::PLAIN), plain);
        let coloured = printed(Style { colour: true });
        assert!(coloured.contains("\u{1b}[31mfailed\u{1b}[0m\n"), "{coloured:?}");
        let stripped = ["\u{1b}[1m", "\u{1b}[31m", "\u{1b}[0m"]
            .iter()
            .fold(coloured.clone(), |text, code| text.replace(code, ""));
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_bar_is_as_full_as_the_work_is_done() {
        let progress = Progress { what: "dead letters", total: Some(10), is_shown: false };
        assert_eq!(progress.line(5), format!("[{}{}] 5 of 10 dead letters", "#".repeat(15), ".".repeat(15)));
        assert_eq!(progress.line(12), format!("[{}] 12 of 12 dead letters", "#".repeat(30)));
        let counting = Progress { total: None, ..progress };
        assert_eq!(counting.line(7), "7 dead letters");
    }
}
