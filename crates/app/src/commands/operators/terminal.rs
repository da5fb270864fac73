//! Terminal output that a file does not get: colours and progress. Also tables and sections.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

pub(crate) use domain::document::Tone;

use crate::commands::output::print_line;

/// The number of spaces between two columns.
const GAP: usize = 2;
/// The width of the bar of [`Progress`], in characters.
const BAR_WIDTH: u64 = 30;

/// Selects coloured or plain text. A tone is never the only thing that distinguishes one text from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    /// Plain text.
    pub(crate) const PLAIN: Self = Self { colour: false };

    /// The style for standard output: coloured on a terminal that supports it, unless `NO_COLOR` is set.
    pub(crate) fn of_stdout(vars: &[(String, String)]) -> Self {
        Self::new(vars, io::stdout().is_terminal())
    }

    fn new(vars: &[(String, String)], is_terminal: bool) -> Self {
        let value = |name: &str| vars.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        let refused =
            value("NO_COLOR").is_some_and(|value| !value.is_empty()) || value("TERM") == Some("dumb");
        Self { colour: is_terminal && !refused }
    }

    /// Returns the text in the colour of its tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        self.styled(code(tone), text)
    }

    /// Returns the text as a heading.
    pub(crate) fn strong(self, text: &str) -> String {
        self.styled(STRONG, text)
    }

    fn styled(self, code: Option<&str>, text: &str) -> String {
        match code {
            Some(code) if self.colour && !text.is_empty() => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            _ => text.to_owned(),
        }
    }
}

const STRONG: Option<&str> = Some("1");

/// The escape code of a tone.
fn code(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Neutral => None,
        Tone::Good => Some("32"),
        Tone::Busy | Tone::Warning => Some("33"),
        Tone::Bad => Some("31"),
    }
}

/// A cell of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    text: String,
    code: Option<&'static str>,
}

impl Cell {
    /// Creates a cell with a tone.
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), code: code(tone) }
    }

    /// Creates a heading.
    pub(crate) fn strong(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: STRONG }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Neutral)
    }
}

/// Prints rows with their columns aligned.
pub(crate) fn print_rows<R: AsRef<[Cell]>>(
    out: &mut impl Write,
    style: Style,
    rows: &[R],
) -> anyhow::Result<()> {
    print_indented(out, style, "", rows)
}

fn print_indented<R: AsRef<[Cell]>>(
    out: &mut impl Write,
    style: Style,
    indent: &str,
    rows: &[R],
) -> anyhow::Result<()> {
    let rows = || rows.iter().map(AsRef::as_ref);
    let columns = rows().map(<[Cell]>::len).max().unwrap_or(0);
    let length = |cell: &Cell| cell.text.chars().count();
    let width = |column: usize| rows().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows() {
        // Nothing is printed after the last cell that has a text.
        let cells = row.iter().rposition(|cell| !cell.text.is_empty()).map_or(0, |last| last + 1);
        let mut line = if cells > 0 { indent.to_owned() } else { String::new() };
        for (at, (cell, width)) in row.iter().zip(&widths).take(cells).enumerate() {
            line += &style.styled(cell.code, &cell.text);
            let padding = if at + 1 < cells { width + GAP - length(cell) } else { 0 };
            line.extend(std::iter::repeat_n(' ', padding));
        }
        print_line(out, &line)?;
    }
    Ok(())
}

/// Returns true if standard error is a terminal that can redraw a line.
pub(crate) fn draws_on_stderr() -> bool {
    can_draw(io::stderr().is_terminal(), std::env::var_os("TERM").as_deref())
}

fn can_draw(is_terminal: bool, term: Option<&OsStr>) -> bool {
    is_terminal && term.is_none_or(|term| term != "dumb")
}

/// Rows below their headings; nothing if there are no rows.
pub(crate) fn table<const N: usize>(
    names: [&str; N],
    rows: impl IntoIterator<Item = [Cell; N]>,
) -> Vec<[Cell; N]> {
    let mut rows = rows.into_iter().peekable();
    let names = rows.peek().map(|_| names.map(Cell::strong));
    names.into_iter().chain(rows).collect()
}

/// Prints the title of a section and its rows, indented, after an empty line.
pub(crate) fn print_section<R: AsRef<[Cell]>>(
    out: &mut impl Write,
    style: Style,
    title: &str,
    rows: &[R],
) -> anyhow::Result<()> {
    print_line(out, &format!("\n{}", style.strong(title)))?;
    if rows.is_empty() { print_line(out, "  none") } else { print_indented(out, style, "  ", rows) }
}

/// Prints the members of one item, each with its name; members without a text are left out.
pub(crate) fn print_members<'a>(
    out: &mut impl Write,
    style: Style,
    members: impl IntoIterator<Item = (&'a str, Cell)>,
) -> anyhow::Result<()> {
    let members = members.into_iter().filter(|(_, cell)| !cell.text.is_empty());
    print_rows(out, style, &members.map(|(name, cell)| [Cell::strong(name), cell]).collect::<Vec<_>>())
}

/// The progress of a command, on one line of a terminal. Prints nothing if standard error is not a terminal
/// that can redraw a line.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    /// The total; `None` if it is unknown.
    total: Option<u64>,
    is_shown: bool,
}

impl Progress {
    /// Creates progress towards `total`; `what` is the plural noun of the items.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        Self { what, total: Some(total), is_shown: draws_on_stderr() }
    }

    /// Creates progress towards an unknown total.
    pub(crate) fn counting(what: &'static str) -> Self {
        Self { what, total: None, is_shown: draws_on_stderr() }
    }

    /// Shows the number done, which may turn out to be more than the total.
    pub(crate) fn show(&self, done: u64) {
        self.show_with(done, "");
    }

    /// Shows the number done with a note about the command, such as `, waiting for publishers`.
    pub(crate) fn show_with(&self, done: u64, note: &str) {
        if self.is_shown {
            // The line before may have been longer. A terminal that cannot be written does not stop the work.
            let _ = write!(io::stderr(), "\r{}{note}\u{1b}[K", self.line(done));
        }
    }

    /// Removes the line, so that the next output begins on an empty line.
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
            vec!["route".into(), Cell::strong("status"), "error".into()],
            vec!["r1".into(), Cell::new("failed", Tone::Bad), Cell::from("")],
            vec!["r-long".into(), "ok".into(), "none".into()],
        ];
        let printed = |style: Style| {
            let mut out = Vec::new();
            print_rows(&mut out, style, &rows).expect("memory takes it");
            String::from_utf8(out).expect("text")
        };
        let plain = "route   status  error\nr1      failed\nr-long  ok      none\n";
        assert_eq!(printed(Style::PLAIN), plain);
        let rows = table(["ID", "ERROR"], [["1", "wrong"].map(Cell::from), ["200", ""].map(Cell::from)]);
        let mut out = Vec::new();
        print_section(&mut out, Style::PLAIN, "events", &rows).expect("memory takes it");
        print_section(&mut out, Style::PLAIN, "others", &[[]; 0]).expect("memory takes it");
        let expected = "\nevents\n  ID   ERROR\n  1    wrong\n  200\n\nothers\n  none\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        let coloured = printed(Style { colour: true });
        assert!(coloured.contains("\u{1b}[31mfailed\u{1b}[0m\n"), "{coloured:?}");
        let stripped = ["\u{1b}[1m", "\u{1b}[31m", "\u{1b}[0m"]
            .iter()
            .fold(coloured.clone(), |text, code| text.replace(code, ""));
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_line_is_drawn_again_only_on_a_terminal_that_can() {
        for (is_terminal, term, expected) in [
            (true, Some("xterm"), true),
            (true, None, true),
            (true, Some("dumb"), false),
            (false, Some("xterm"), false),
        ] {
            assert_eq!(can_draw(is_terminal, term.map(OsStr::new)), expected, "{is_terminal} {term:?}");
        }
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
