//! The file of records that could not be imported.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

/// The file `<FILE>.refused.jsonl`, which is created only if a record is refused.
pub(super) struct Refusals {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    count: u64,
}

#[derive(Serialize)]
struct Refusal<'a> {
    line: u64,
    reason: &'a str,
    text: &'a str,
}

impl Refusals {
    /// Prepares the file of this import; removes that of an earlier one.
    pub(super) fn new(imported: &Path) -> anyhow::Result<Self> {
        let mut name = imported.as_os_str().to_owned();
        name.push(".refused.jsonl");
        let path = PathBuf::from(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{} could not be removed", path.display()))
            }
            _ => Ok(Self { path, file: None, count: 0 }),
        }
    }

    /// Adds a refused record.
    pub(super) fn add(&mut self, line: u64, reason: &str, text: &str) -> anyhow::Result<()> {
        self.count += 1;
        self.write(&Refusal { line, reason, text })
            .with_context(|| format!("{} could not be written", self.path.display()))
    }

    fn write(&mut self, refusal: &Refusal<'_>) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(File::create(&self.path)?)),
        };
        serde_json::to_writer(&mut *file, refusal)?;
        file.write_all(b"\n")
    }

    /// The number of refused records.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Flushes the file, and returns its path if any record was refused.
    pub(super) fn finish(&mut self) -> anyhow::Result<Option<&Path>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        file.flush().with_context(|| format!("{} could not be written", self.path.display()))?;
        Ok(Some(&self.path))
    }
}
