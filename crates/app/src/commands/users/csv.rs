//! Reads rows of a CSV file, whose quoted fields may contain line ends.
//!
//! A quote that is never closed would make the rest of the file one row. So the length of a row is bounded:
//! if a row would be longer, its first line is refused, and the next line begins a new row.

use std::io::{self, BufRead};

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::lines::{Line, Lines, MAX_RECORD_BYTES, text, too_long};

/// A row.
pub(super) struct CsvRecord {
    /// The text of the row, as in the file.
    pub(super) text: String,
    /// The fields, or the reason why they cannot be read.
    pub(super) fields: Result<Vec<String>, String>,
}

/// Reads rows, one at a time.
pub(super) struct Rows {
    parser: Reader,
    /// The contents of the fields read so far; `ends` has the end of each.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    used_bytes: usize,
    used_ends: usize,
}

impl Default for Rows {
    fn default() -> Self {
        let parser = ReaderBuilder::new().build();
        Self { parser, bytes: Vec::new(), ends: Vec::new(), used_bytes: 0, used_ends: 0 }
    }
}

impl Rows {
    /// Reads the row that begins with `first`, and further lines if it continues there.
    pub(super) fn read(&mut self, lines: &mut Lines<impl BufRead>, first: Line) -> io::Result<CsvRecord> {
        if first.is_too_long {
            return Ok(CsvRecord { text: first.text(), fields: Err(too_long()) });
        }
        self.parser.reset();
        (self.used_bytes, self.used_ends) = (0, 0);
        let mut raw = first.bytes.clone();
        let mut further = Vec::new();
        let mut end = self.feed(&first.bytes);
        while matches!(end, End::NotYet) {
            let next = lines.next()?;
            let fits = |line: &Line| !line.is_too_long && raw.len() + line.bytes.len() <= MAX_RECORD_BYTES;
            let goes_on = next.as_ref().is_some_and(fits);
            further.extend(next);
            let Some(next) = further.last().filter(|_| goes_on) else {
                lines.give_back(further);
                return Ok(CsvRecord { text: first.text(), fields: Err("a quote is not closed".to_owned()) });
            };
            raw.extend(&next.bytes);
            end = self.feed(&next.bytes);
        }
        let fields = match end {
            End::Whole => self.fields(),
            _ => Err("it has a carriage return outside of quotes".to_owned()),
        };
        Ok(CsvRecord { text: text(&raw), fields })
    }

    fn feed(&mut self, line: &[u8]) -> End {
        // Each input byte produces at most one output byte and one field end.
        self.bytes.resize(self.used_bytes + line.len() + 1, 0);
        self.ends.resize(self.used_ends + line.len() + 1, 0);
        let (bytes, ends) = (&mut self.bytes[self.used_bytes..], &mut self.ends[self.used_ends..]);
        let (result, read, new_bytes, new_ends) = self.parser.read_record(line, bytes, ends);
        self.used_bytes += new_bytes;
        self.used_ends += new_ends;
        match result {
            ReadRecordResult::InputEmpty => End::NotYet,
            ReadRecordResult::Record if [&b""[..], b"\n"].contains(&&line[read..]) => End::Whole,
            _ => End::Early,
        }
    }

    fn fields(&self) -> Result<Vec<String>, String> {
        let ends = &self.ends[..self.used_ends];
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let field = |(begin, end): (usize, &usize)| {
            let field = std::str::from_utf8(&self.bytes[begin..*end]);
            field.map(str::to_owned).map_err(|_| "it is not UTF-8".to_owned())
        };
        begins.zip(ends).map(field).collect()
    }
}

/// The position of a row's end in a line.
enum End {
    NotYet,
    Whole,
    /// The row ends before the end of the line.
    Early,
}
