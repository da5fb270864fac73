//! How commands of operators print and ask.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::ops::RangeInclusive;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use super::Failure;

/// The space between two columns.
const GAP: usize = 2;
/// The most of an answer that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 256;

/// Characters that are not seen and change the order in which others are shown, or break the line.
const DIRECTING: [RangeInclusive<char>; 5] = [
    '\u{61c}'..='\u{61c}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2066}'..='\u{2069}',
    '\u{feff}'..='\u{feff}',
];

/// Prints rows with their columns aligned; the first row is the heading.
pub(crate) fn print_table(out: &mut impl Write, rows: &[Vec<String>]) -> anyhow::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP));
        print_line(out, cells.collect::<String>().trim_end())?;
    }
    Ok(())
}

/// Prints one JSON document as a line.
pub(crate) fn print_json(out: &mut impl Write, value: &Value) -> anyhow::Result<()> {
    print_line(out, &value.to_string())
}

/// Prints one document as a line, its members in their order.
pub(crate) fn print_serialized(out: &mut impl Write, document: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(document).context("the document is no JSON")?;
    print_line(out, &text)
}

/// Prints one line.
pub(crate) fn print_line(out: &mut impl Write, line: &str) -> anyhow::Result<()> {
    writeln!(out, "{line}").context("could not write to standard output")
}

/// The text on one line and without what a terminal would act upon, or what would show it in another order.
pub(crate) fn printable(text: &str) -> String {
    let is_escaped = |c: char| c.is_control() || DIRECTING.iter().any(|range| range.contains(&c));
    text.chars().flat_map(|c| if is_escaped(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Asks on the terminal, and returns whether the answer is yes. Without a terminal it is wrong usage.
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::Usage(
            "error: there is no terminal to ask on: add --yes or --dry-run".to_owned(),
        ));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush().context("could not write to standard error")?;
    let mut answer = String::new();
    let mut line = input.lock().take(MAX_ANSWER_BYTES);
    line.read_line(&mut answer).context("could not read from the terminal")?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_last_cell() {
        let rows = [["id", "error"], ["1", "wrong type"], ["200", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let mut out = Vec::new();
        print_table(&mut out, &rows).expect("memory takes it");
        assert_eq!(String::from_utf8(out).expect("text"), "id   error\n1    wrong type\n200\n");
    }

    #[test]
    fn what_a_terminal_would_act_upon_is_escaped() {
        assert_eq!(printable("a\nb\u{1b}[31mü"), "a\\nb\\u{1b}[31mü");
        assert_eq!(printable("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
    }
}
