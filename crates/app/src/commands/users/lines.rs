//! Reads the numbered lines of a file, with bounded memory for each line.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

/// The largest record that is imported, in bytes.
pub(super) const MAX_RECORD_BYTES: usize = 256 * 1024;

/// The byte order mark that some programs write at the beginning of UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The reason for refusing a line or a row that is too long.
pub(super) fn too_long() -> String {
    format!("it is longer than {MAX_RECORD_BYTES} bytes")
}

/// A line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line {
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The bytes with a line end, which is added to the last line if it has none. A line that is too long is
    /// truncated.
    pub(super) bytes: Vec<u8>,
    /// True if the line is longer than [`MAX_RECORD_BYTES`].
    pub(super) is_too_long: bool,
}

/// Reads a file line by line.
pub(super) struct Lines<R> {
    input: R,
    /// Lines that were given back, to be read again.
    again: VecDeque<Line>,
    last_number: u64,
    bytes_read: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, again: VecDeque::new(), last_number: 0, bytes_read: 0 }
    }

    /// The number of bytes read from the file so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns the next line that is not blank.
    pub(super) fn next_record(&mut self) -> io::Result<Option<Line>> {
        loop {
            match self.next()? {
                Some(line) if line.is_blank() => {}
                other => return Ok(other),
            }
        }
    }

    /// Returns the next line.
    pub(super) fn next(&mut self) -> io::Result<Option<Line>> {
        if let Some(line) = self.again.pop_front() {
            return Ok(Some(line));
        }
        let mut bytes = Vec::new();
        let most = MAX_RECORD_BYTES as u64 + 1;
        let mut read = self.input.by_ref().take(most).read_until(b'\n', &mut bytes)? as u64;
        if read == 0 {
            return Ok(None);
        }
        let is_too_long = read == most && bytes.last() != Some(&b'\n');
        if is_too_long {
            read += self.skip_rest()?;
        }
        self.bytes_read += read;
        self.last_number += 1;
        if self.last_number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        if bytes.last() != Some(&b'\n') {
            bytes.push(b'\n');
        }
        Ok(Some(Line { number: self.last_number, bytes, is_too_long }))
    }

    /// Gives lines back, to be read again in their order.
    pub(super) fn give_back(&mut self, lines: Vec<Line>) {
        for line in lines.into_iter().rev() {
            self.again.push_front(line);
        }
    }

    /// Skips to the end of a line, and returns the number of bytes skipped.
    fn skip_rest(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            let buffer = self.input.fill_buf()?;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let (used, is_end) =
                (end.map_or(buffer.len(), |end| end + 1), end.is_some() || buffer.is_empty());
            self.input.consume(used);
            skipped += used as u64;
            if is_end {
                return Ok(skipped);
            }
        }
    }
}

impl Line {
    fn is_blank(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }

    /// The line without its line end, for display.
    pub(super) fn text(&self) -> String {
        text(&self.bytes)
    }
}

/// The bytes without a trailing line end, for display.
pub(super) fn text(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Vec<(u64, String, bool)> {
        let mut lines = Lines::new(input);
        let mut seen = Vec::new();
        while let Some(line) = lines.next_record().expect("memory") {
            seen.push((line.number, line.text(), line.is_too_long));
        }
        assert_eq!(lines.bytes_read(), input.len() as u64);
        seen
    }

    #[test]
    fn lines_are_numbered_as_an_editor_does_and_blank_ones_left_out() {
        let expected = [(1, "a".to_owned(), false), (3, "b ".to_owned(), false), (6, "c".to_owned(), false)];
        assert_eq!(all(b"\xef\xbb\xbfa\r\n\r\nb \n \t\n\nc"), expected);
        assert_eq!(all(b""), []);
        assert_eq!(all(b"\xef\xbb\xbf\n"), []);
    }

    #[test]
    fn of_a_line_that_is_too_long_the_beginning_is_kept_and_the_next_line_is_read() {
        let longest = "x".repeat(MAX_RECORD_BYTES);
        for (length, is_too_long) in
            [(MAX_RECORD_BYTES, false), (MAX_RECORD_BYTES + 1, true), (3_000_000, true)]
        {
            for end in ["", "\n", "\nnext"] {
                let input = "x".repeat(length) + end;
                let seen = all(input.as_bytes());
                assert!(seen[0].1.starts_with(&longest) && seen[0].1.len() <= MAX_RECORD_BYTES + 1);
                assert_eq!(seen[0].2, is_too_long, "{length} {end:?}");
                assert_eq!(seen.get(1).is_some(), end == "\nnext");
            }
        }
    }

    #[test]
    fn lines_that_are_given_back_come_again_in_their_order() {
        let mut lines = Lines::new(&b"a\nb\nc\n"[..]);
        let mut next = || lines.next().expect("memory").expect("a line");
        let (first, second) = (next(), next());
        lines.give_back(vec![first.clone(), second.clone()]);
        assert_eq!(lines.next().expect("memory"), Some(first.clone()));
        lines.give_back(vec![first]);
        assert_eq!(lines.next().expect("memory").map(|line| line.number), Some(1));
        assert_eq!(lines.next().expect("memory"), Some(second));
        assert_eq!(lines.next().expect("memory").map(|line| line.text()), Some("c".to_owned()));
    }
}
