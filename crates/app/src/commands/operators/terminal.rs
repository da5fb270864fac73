//! Terminal output that a file does not get: colours, progress, and tables that fit the width. Also sections.

mod fit;

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use ambient::Timestamp;
pub(crate) use domain::document::Tone;
use rustix::fd::AsFd;

pub(crate) use self::fit::Column;
use self::fit::{GAP, cut, fitted, width_of};
use crate::commands::output::print_line;

/// The indentation of the rows of a section.
const INDENT: &str = "  ";
/// The width of a terminal that does not report its own.
const DEFAULT_WIDTH: usize = 80;
/// The width of the bar of [`Progress`], in characters, if there is room for it.
const BAR_WIDTH: usize = 30;

/// The format of text: coloured or plain, and the width that tables must fit. A tone is never the only thing
/// that distinguishes one text from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    colour: bool,
    /// The width that tables must fit; `None` if they are printed whole.
    width: Option<usize>,
}

impl Style {
    /// Plain text, with whole tables.
    pub(crate) const PLAIN: Self = Self { colour: false, width: None };

    /// The style for standard output. It is coloured on a terminal that supports it, unless `NO_COLOR` is
    /// set. Tables fit the width of a terminal, unless `wide` is set.
    pub(crate) fn of_stdout(vars: &[(String, String)], wide: bool) -> Self {
        let width = terminal_width(&io::stdout());
        Self { width: width.filter(|_| !wide), ..Self::new(vars, width.is_some()) }
    }

    /// The style for a table in a section, whose rows are indented.
    pub(crate) fn in_section(self) -> Self {
        Self { width: self.width.map(|width| width.saturating_sub(INDENT.len())), ..self }
    }

    fn new(vars: &[(String, String)], is_terminal: bool) -> Self {
        let value = |name: &str| vars.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        let refused =
            value("NO_COLOR").is_some_and(|value| !value.is_empty()) || value("TERM") == Some("dumb");
        Self { colour: is_terminal && !refused, width: None }
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

/// The width of a terminal in columns; `None` if `stream` is no terminal.
fn terminal_width(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let size = || rustix::termios::tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
    stream.is_terminal().then(|| size().filter(|columns| *columns > 0).unwrap_or(DEFAULT_WIDTH))
}

/// A cell of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    text: String,
    code: Option<&'static str>,
    is_time: bool,
}

impl Cell {
    /// Creates a cell with a tone.
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), code: code(tone), is_time: false }
    }

    /// Creates a heading.
    pub(crate) fn strong(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: STRONG, is_time: false }
    }

    /// Creates a time, which a table that fits a terminal shows in whole seconds.
    pub(crate) fn time(at: Timestamp) -> Self {
        Self { is_time: true, ..at.to_string().into() }
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
    let length = |cell: &Cell| width_of(&cell.text);
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

/// Returns true if a terminal of this kind can redraw a line.
fn can_draw(term: Option<&OsStr>) -> bool {
    term.is_none_or(|term| term != "dumb")
}

/// Rows below their headings; nothing if there are no rows. They fit the width of `style`: columns are left
/// out and cells are cut by the ranks of the columns, and times are in seconds.
pub(crate) fn table<const N: usize>(
    style: Style,
    columns: [Column; N],
    rows: impl IntoIterator<Item = [Cell; N]>,
) -> Vec<Vec<Cell>> {
    let mut rows: Vec<Vec<Cell>> = rows.into_iter().map(Vec::from).collect();
    if rows.is_empty() {
        return rows;
    }
    rows.insert(0, columns.iter().map(|column| Cell::strong(column.name)).collect());
    let Some(width) = style.width else { return rows };
    for cell in rows.iter_mut().flatten().filter(|cell| cell.is_time) {
        cell.text = in_seconds(&cell.text);
    }
    let natural = std::array::from_fn(|at| rows.iter().map(|row| width_of(&row[at].text)).max().unwrap_or(0));
    let widths = fitted(&columns, &natural, width);
    let fit = |(cell, width): (Cell, Option<usize>)| {
        width.map(|width| Cell { text: cut(&cell.text, width), ..cell })
    };
    rows.into_iter().map(|row| row.into_iter().zip(widths).filter_map(fit).collect()).collect()
}

/// A time without the fraction of its second.
fn in_seconds(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

/// Prints the title of a section and its rows, indented, after an empty line.
pub(crate) fn print_section<R: AsRef<[Cell]>>(
    out: &mut impl Write,
    style: Style,
    title: &str,
    rows: &[R],
) -> anyhow::Result<()> {
    print_line(out, &format!("\n{}", style.strong(title)))?;
    if rows.is_empty() {
        print_line(out, &format!("{INDENT}none"))
    } else {
        print_indented(out, style, INDENT, rows)
    }
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
    line: StatusLine,
}

impl Progress {
    /// Creates progress towards `total`; `what` is the plural noun of the items.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        Self { what, total: Some(total), line: StatusLine::on_stderr() }
    }

    /// Creates progress towards an unknown total.
    pub(crate) fn counting(what: &'static str) -> Self {
        Self { what, total: None, line: StatusLine::on_stderr() }
    }

    /// Shows the number done, which may turn out to be more than the total.
    pub(crate) fn show(&self, done: u64) {
        self.show_with(done, "");
    }

    /// Shows the number done with a note about the command, such as `, waiting for publishers`.
    pub(crate) fn show_with(&self, done: u64, note: &str) {
        self.line.show(|width| self.text(done, note, width));
    }

    /// Removes the line, so that the next output begins on an empty line.
    pub(crate) fn finish(self) {
        self.line.clear();
    }

    fn text(&self, done: u64, note: &str, width: usize) -> String {
        let Some(total) = self.total else { return format!("{done} {}{note}", self.what) };
        let total = total.max(done).max(1);
        let text = format!("{done} of {total} {}{note}", self.what);
        // The brackets and a space.
        let room = width.saturating_sub(text.len() + 3).min(BAR_WIDTH);
        if room == 0 {
            return text;
        }
        // Cannot fail: at most the width of the bar.
        let full = usize::try_from(u128::from(done) * room as u128 / u128::from(total)).unwrap_or(room);
        format!("[{}{}] {text}", "#".repeat(full), ".".repeat(room - full))
    }
}

/// A line on standard error that is drawn again and again. It shows nothing if standard error is not a
/// terminal that can redraw a line.
#[derive(Debug)]
pub(crate) struct StatusLine {
    /// The width of the terminal; `None` if nothing is shown.
    width: Option<usize>,
}

impl StatusLine {
    pub(crate) fn on_stderr() -> Self {
        let width = terminal_width(&io::stderr());
        Self { width: width.filter(|_| can_draw(std::env::var_os("TERM").as_deref())) }
    }

    /// Replaces the line by the text that `text` makes for a width. One column stays free: in the last one
    /// some terminals begin a new line.
    pub(crate) fn show(&self, text: impl FnOnce(usize) -> String) {
        if let Some(width) = self.width {
            let width = width.saturating_sub(1);
            // The line before may have been longer. A terminal that cannot be written does not stop the work.
            let _ = write!(io::stderr(), "\r{}\u{1b}[K", cut(&text(width), width));
        }
    }

    /// Removes the line.
    pub(crate) fn clear(&self) {
        self.show(|_| String::new());
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
        let columns = [Column::new("ID", 0), Column::new("ERROR", 1)];
        let cells = [["1", "wrong"].map(Cell::from), ["200", ""].map(Cell::from)];
        let rows = table(Style::PLAIN, columns, cells);
        let mut out = Vec::new();
        print_section(&mut out, Style::PLAIN, "events", &rows).expect("memory takes it");
        print_section(&mut out, Style::PLAIN, "others", &[[]; 0]).expect("memory takes it");
        let expected = "\nevents\n  ID   ERROR\n  1    wrong\n  200\n\nothers\n  none\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        let coloured = printed(Style { colour: true, ..Style::PLAIN });
        assert!(coloured.contains("\u{1b}[31mfailed\u{1b}[0m\n"), "{coloured:?}");
        let stripped = ["\u{1b}[1m", "\u{1b}[31m", "\u{1b}[0m"]
            .iter()
            .fold(coloured.clone(), |text, code| text.replace(code, ""));
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_table_fits_the_width_with_times_in_seconds_and_the_useful_columns() {
        let at: Timestamp = "2026-04-02T09:30:00.123456Z".parse().expect("a time");
        let columns = [
            Column::new("ID", 0),
            Column::new("TYPE", 3).at_least(6),
            Column::new("SINCE", 2),
            Column::new("ERROR", 1).at_least(10),
        ];
        let printed = |width: Option<usize>| {
            let style = Style { width, ..Style::PLAIN };
            let row =
                ["1-0".into(), "game.finished".into(), Cell::time(at), "WRONGTYPE: a wrong kind".into()];
            let mut out = Vec::new();
            print_rows(&mut out, style, &table(style, columns, [row])).expect("memory takes it");
            String::from_utf8(out).expect("text").lines().nth(1).expect("a row").to_owned()
        };
        for (width, expected) in [
            (None, "1-0  game.finished  2026-04-02T09:30:00.123456Z  WRONGTYPE: a wrong kind"),
            (Some(200), "1-0  game.finished  2026-04-02T09:30:00Z  WRONGTYPE: a wrong kind"),
            (Some(58), "1-0  game.…  2026-04-02T09:30:00Z  WRONGTYPE: a wrong kind"),
            (Some(48), "1-0  game.…  2026-04-02T09:30:00Z  WRONGTYPE: a…"),
            (Some(42), "1-0  2026-04-02T09:30:00Z  WRONGTYPE: a w…"),
            (Some(28), "1-0  game.…  WRONGTYPE: a w…"),
            (Some(18), "1-0  WRONGTYPE: a…"),
        ] {
            assert_eq!(printed(width), expected, "{width:?}");
        }
    }

    #[test]
    fn a_line_is_drawn_again_only_on_a_terminal_that_can() {
        for (term, expected) in [(Some("xterm"), true), (None, true), (Some("dumb"), false)] {
            assert_eq!(can_draw(term.map(OsStr::new)), expected, "{term:?}");
        }
    }

    #[test]
    fn a_bar_is_as_full_as_the_work_is_done_and_fits_its_line() {
        let progress = Progress { what: "dead letters", total: Some(10), line: StatusLine { width: None } };
        let text = |done, width| progress.text(done, "", width);
        assert_eq!(text(5, 79), format!("[{}{}] 5 of 10 dead letters", "#".repeat(15), ".".repeat(15)));
        assert_eq!(text(12, 79), format!("[{}] 12 of 12 dead letters", "#".repeat(30)));
        assert_eq!(text(5, 26), "[#..] 5 of 10 dead letters");
        assert_eq!(text(5, 20), "5 of 10 dead letters");
        let note = progress.text(1_000_000_000, ", waiting for publishers", 79);
        assert!(width_of(&note) <= 79, "{note}");
        let counting = Progress { total: None, ..progress };
        assert_eq!(counting.text(7, "", 79), "7 dead letters");
    }
}
