//! One row of a CSV file, which may have line ends within quotes.
//!
//! A quote that is never closed makes the rest of a file one row. So a row is bounded: where one would be longer, its first line
//! is refused, and the next line begins another.

use std::io::{self, BufRead};

use csv_core::{ReadRecordResult, Reader};

use super::lines::{Line, Lines, MAX_RECORD_BYTES, text};
use super::records::too_long;

/// A row.
pub(super) struct CsvRecord {
    /// As it is in the file.
    pub(super) text: String,
    /// Or why it has none.
    pub(super) fields: Result<Vec<String>, String>,
}

/// The row that begins with `first`. Reads further lines if it goes on there.
pub(super) fn read_record(lines: &mut Lines<impl BufRead>, first: Line) -> io::Result<CsvRecord> {
    if first.is_too_long {
        return Ok(CsvRecord { text: first.text(), fields: Err(too_long()) });
    }
    let mut row = Row::default();
    let mut raw = first.bytes.clone();
    let mut further = Vec::new();
    let mut end = row.feed(&first.bytes);
    while matches!(end, End::NotYet) {
        let next = lines.next()?.filter(|next| {
            further.push(next.clone());
            !next.is_too_long && raw.len() + next.bytes.len() <= MAX_RECORD_BYTES
        });
        let Some(next) = next else {
            lines.give_back(further);
            return Ok(CsvRecord { text: first.text(), fields: Err("a quote is not closed".to_owned()) });
        };
        raw.extend(&next.bytes);
        end = row.feed(&next.bytes);
    }
    let fields = match end {
        End::Whole => row.fields(),
        _ => Err("it has a carriage return outside of quotes".to_owned()),
    };
    Ok(CsvRecord { text: text(&raw), fields })
}

/// Whether a line ends the row.
enum End {
    NotYet,
    Whole,
    /// Before the end of the line.
    Early,
}

/// The fields of a row, as far as it was read.
#[derive(Default)]
struct Row {
    parser: Reader,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    used_bytes: usize,
    used_ends: usize,
}

impl Row {
    fn feed(&mut self, line: &[u8]) -> End {
        // Each byte makes at most one byte and one end.
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
