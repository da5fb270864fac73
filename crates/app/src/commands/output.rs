//! Printing and confirmation of operators' commands.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::ops::RangeInclusive;

use anyhow::Context;
use serde::Serialize;

use super::Failure;

/// The most bytes of a typed reply that are read.
const MAX_ANSWER_BYTES: u64 = 256;

/// Invisible characters that reorder the characters around them or break the line.
const DIRECTING: [RangeInclusive<char>; 5] = [
    '\u{61c}'..='\u{61c}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2066}'..='\u{2069}',
    '\u{feff}'..='\u{feff}',
];

/// The exit code if the reader of standard output has gone. A shell reports the same of a program that
/// SIGPIPE ended.
const EXIT_CLOSED_PIPE: i32 = 128 + 13;

/// Standard output. A pipe that its reader has closed, as `head` does, ends the process without a message.
#[derive(Debug)]
pub(crate) struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_closed(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_closed(io::stdout().flush())
    }
}

fn unless_closed<T>(written: io::Result<T>) -> io::Result<T> {
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(EXIT_CLOSED_PIPE);
    }
    written
}

/// Serialises one document and prints it as a line; its members keep their order.
pub(crate) fn print_json(out: &mut impl Write, document: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(document).context("the document is no JSON")?;
    print_line(out, &text)
}

/// Prints one line.
pub(crate) fn print_line(out: &mut impl Write, line: &str) -> anyhow::Result<()> {
    writeln!(out, "{line}").context("could not write to standard output")
}

/// Escapes everything that a terminal would act on, that breaks the line, or that reorders the text.
pub(crate) fn printable(text: &str) -> String {
    let is_escaped = |c: char| c.is_control() || DIRECTING.iter().any(|range| range.contains(&c));
    text.chars().flat_map(|c| if is_escaped(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Prompts on the terminal, and returns true if the reply is yes. Without a terminal this is a usage error.
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(Failure::Usage(
            "error: there is no terminal to ask on: add --yes or --dry-run".to_owned(),
        ));
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush().context("could not write to standard error")?;
    let mut answer = String::new();
    let mut line = input.lock().take(MAX_ANSWER_BYTES);
    line.read_line(&mut answer).context("could not read from the terminal")?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_upon_is_escaped() {
        assert_eq!(printable("a\nb\u{1b}[31mü"), "a\\nb\\u{1b}[31mü");
        assert_eq!(printable("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
    }
}
