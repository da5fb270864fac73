//! `users import`: stores the users of a file, in batches. Records that cannot be stored are written to a
//! separate file and do not stop the import.
//!
//! It keeps one batch in memory, whatever the size of the file. A batch is stored completely or not at all,
//! so the import may be repeated after a failure: users stored before are replaced by the same values.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::json;
use state::{Key, StateError, Value};
use tokio_util::sync::CancellationToken;

use super::args::Output;
use super::records::{NoRecords, Record, Records};
use super::refusals::Refusals;
use super::{Failure, Users};
use crate::commands::operators::StatusLine;
use crate::commands::output::{print_json, print_line};
use crate::shutdown;

/// The most users of one batch.
const MAX_BATCH_USERS: usize = 1_000;
/// The bytes at which a batch is stored, however few its users are.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// The interval between two updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A file that can be imported.
pub(super) struct Input {
    path: PathBuf,
    records: Records<BufReader<File>>,
    bytes: u64,
}

/// Opens a file of one of the two formats, and reads its header if it has one.
pub(super) fn open(path: &Path) -> Result<Input, Failure> {
    let wrong =
        |reason: &str| Failure::Usage(format!("error: {} cannot be imported: {reason}", path.display()));
    let suffix = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if !["jsonl", "csv"].contains(&suffix.as_str()) {
        return Err(wrong("its name must end with .jsonl or .csv"));
    }
    let cannot_read = || format!("{} could not be read", path.display());
    let file = File::open(path).with_context(cannot_read)?;
    let bytes = file.metadata().with_context(cannot_read)?.len();
    let input = BufReader::new(file);
    let records = match suffix.as_str() {
        "csv" => Records::csv(input).map_err(|error| match error {
            NoRecords::Io(error) => anyhow::Error::new(error).context(cannot_read()).into(),
            NoRecords::Header(reason) => wrong(&reason),
        })?,
        _ => Records::jsonl(input),
    };
    Ok(Input { path: path.to_owned(), records, bytes })
}

/// A running import.
struct Import<'a> {
    users: &'a Users,
    refusals: Refusals,
    batch: Vec<Taken>,
    batch_bytes: usize,
    imported: u64,
    /// Cancelled by a signal.
    stop: CancellationToken,
}

/// A record of the batch.
struct Taken {
    line: u64,
    text: String,
    key: Key,
    value: Value,
}

impl Users {
    pub(super) async fn import(
        &self,
        mut input: Input,
        output: Output,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let refusals = Refusals::new(&input.path)?;
        let stop = shutdown::listen().context("signals cannot be listened to")?;
        let mut import =
            Import { users: self, refusals, batch: Vec::new(), batch_bytes: 0, imported: 0, stop };
        let mut progress = Progress::new(input.bytes);
        let outcome = import.run(&mut input, &mut progress).await;
        progress.line.clear();
        let refused = import.refusals.count();
        let written = import.refusals.finish().map(|path| path.map(Path::to_owned));
        outcome.with_context(|| {
            let (path, imported) = (input.path.display(), import.imported);
            format!(
                "{path} is imported in part: {imported} users are stored and {refused} records refused, in the order of \
                 the file. Run the command again: it begins with the first line, and what is stored already stays the same"
            )
        })?;
        let written = written?;
        match output.json {
            true => print_json(out, &json!({ "imported": import.imported, "refused": refused }))?,
            false => print_line(out, &format!("imported {}, refused {refused}", import.imported))?,
        }
        match written {
            None => Ok(()),
            Some(path) => Err(anyhow!("{refused} records were refused: see {}", path.display()).into()),
        }
    }
}

impl Import<'_> {
    async fn run(&mut self, input: &mut Input, progress: &mut Progress) -> anyhow::Result<()> {
        let cannot_read = "the file could not be read";
        while let Some(Record { line, text, document }) = input.records.next().context(cannot_read)? {
            // A batch that is full is stored; the next one is not begun.
            if self.batch.is_empty() && self.stop.is_cancelled() {
                return Err(anyhow!("stopped by a signal before line {line}"));
            }
            match document {
                Err(reason) => self.refusals.add(line, &reason, &text)?,
                Ok((key, value)) => {
                    self.batch_bytes += text.len() + key.as_str().len() + value.as_str().len();
                    self.batch.push(Taken { line, text, key, value });
                }
            }
            if self.batch.len() >= MAX_BATCH_USERS || self.batch_bytes >= MAX_BATCH_BYTES {
                self.store_batch().await?;
            }
            progress.show(self.imported, self.refusals.count(), input.records.bytes_read());
        }
        self.store_batch().await
    }

    /// Stores the batch. If PostgreSQL refuses it, the batch is bisected to isolate the refused records.
    async fn store_batch(&mut self) -> anyhow::Result<()> {
        self.batch_bytes = 0;
        let mut parts = vec![std::mem::take(&mut self.batch)];
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let documents: Vec<(Key, Value)> =
                part.iter().map(|taken| (taken.key.clone(), taken.value.clone())).collect();
            match self.users.store.put_many(&documents).await {
                Ok(()) => self.imported += part.len() as u64,
                Err(StateError::InvalidValue(_) | StateError::TimedOut { .. }) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Err(StateError::InvalidValue(reason)) => {
                    self.refusals.add(part[0].line, &reason, &part[0].text)?;
                }
                Err(error) => {
                    let first = part[0].line;
                    return Err(error)
                        .with_context(|| format!("the records from line {first} on are not stored"));
                }
            }
        }
        Ok(())
    }
}

/// The progress of an import, shown on terminals only.
struct Progress {
    bytes: u64,
    line: StatusLine,
    last: Instant,
}

impl Progress {
    fn new(bytes: u64) -> Self {
        Self { bytes, line: StatusLine::on_stderr(), last: Instant::now() }
    }

    fn show(&mut self, imported: u64, refused: u64, bytes_read: u64) {
        if self.last.elapsed() >= PROGRESS_INTERVAL {
            self.last = Instant::now();
            self.line.show(|_| progress_line(imported, refused, bytes_read, self.bytes));
        }
    }
}

fn progress_line(imported: u64, refused: u64, bytes_read: u64, bytes: u64) -> String {
    // A file may grow while it is read.
    let percent = (100 * u128::from(bytes_read) / u128::from(bytes.max(1))).min(100);
    format!("{percent} %: imported {imported}, refused {refused}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_is_that_of_the_file_and_never_over_100() {
        assert_eq!(progress_line(10, 2, 50, 200), "25 %: imported 10, refused 2");
        for (bytes_read, bytes, expected) in
            [(0, 0, "0 %"), (300, 200, "100 %"), (u64::MAX, u64::MAX, "100 %")]
        {
            let line = progress_line(0, 0, bytes_read, bytes);
            assert!(line.starts_with(expected), "{line}");
        }
    }
}
