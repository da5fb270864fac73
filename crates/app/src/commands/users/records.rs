//! The records of a file, as documents or with the reason why they are invalid.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use domain::intent::MAX_RECIPIENT;
use state::json::Json;
use state::{Key, Value};
use user_directory::USERS_PREFIX;

use super::csv::Rows;
use super::lines::{Line, Lines, too_long};

/// The member or column with the user's id.
pub(super) const USER_ID: &str = "user_id";
pub(super) const EMAIL: &str = "email";
pub(super) const PREFERRED_LANGUAGE: &str = "preferred_language";

/// A record of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// The number of its first line, from 1.
    pub(super) line: u64,
    /// The text of the record, as in the file.
    pub(super) text: String,
    /// The document to store, or the reason why the record is invalid.
    pub(super) document: Result<(Key, Value), String>,
}

/// The source of records.
pub(super) enum Records<R> {
    /// A file with an object in each line.
    Jsonl(Lines<R>),
    /// A file with rows, and the names of their columns.
    Csv(Lines<R>, Box<Rows>, Vec<String>),
}

/// The reason why a file cannot be imported.
#[derive(Debug)]
pub(super) enum NoRecords {
    /// The file cannot be read.
    Io(io::Error),
    /// The header is invalid, for this reason.
    Header(String),
}

impl<R: BufRead> Records<R> {
    /// Reads the header of a CSV file.
    pub(super) fn csv(input: R) -> Result<Self, NoRecords> {
        let mut lines = Lines::new(input);
        let wrong = |reason: &str| NoRecords::Header(reason.to_owned());
        let first = lines.next_record().map_err(NoRecords::Io)?.ok_or_else(|| wrong("it has no header"))?;
        let mut rows = Box::<Rows>::default();
        let header = rows.read(&mut lines, first).map_err(NoRecords::Io)?;
        let names = header.fields.map_err(|reason| wrong(&format!("its header cannot be read: {reason}")))?;
        if !names.iter().any(|name| name == USER_ID) {
            return Err(wrong("its header has no column user_id"));
        }
        for (place, name) in names.iter().enumerate() {
            if name.is_empty() || name.contains('\0') {
                return Err(wrong(&format!("column {} of its header has no name", place + 1)));
            }
            if names[..place].contains(name) {
                return Err(wrong(&format!("its header has the column {name:?} twice")));
            }
        }
        Ok(Self::Csv(lines, rows, names))
    }

    pub(super) fn jsonl(input: R) -> Self {
        Self::Jsonl(Lines::new(input))
    }

    /// The number of bytes read from the file so far.
    pub(super) fn bytes_read(&self) -> u64 {
        match self {
            Self::Jsonl(lines) | Self::Csv(lines, ..) => lines.bytes_read(),
        }
    }

    /// Returns the next record.
    pub(super) fn next(&mut self) -> io::Result<Option<Record>> {
        match self {
            Self::Jsonl(lines) => Ok(lines.next_record()?.map(|line| Record {
                line: line.number,
                text: line.text(),
                document: of_line(&line),
            })),
            Self::Csv(lines, rows, names) => {
                let Some(first) = lines.next_record()? else { return Ok(None) };
                let line = first.number;
                let row = rows.read(lines, first)?;
                let document = row.fields.and_then(|fields| of_row(names, fields));
                Ok(Some(Record { line, text: row.text, document }))
            }
        }
    }
}

fn of_line(line: &Line) -> Result<(Key, Value), String> {
    if line.is_too_long { Err(too_long()) } else { of_json(&line.bytes) }
}

/// The document of a user in JSON, or the reason why it is invalid.
pub(super) fn of_json(text: &[u8]) -> Result<(Key, Value), String> {
    let json = Json::parse(text.trim_ascii()).map_err(|error| {
        format!("it is no JSON that can be stored: {} at column {}", error.reason, error.column)
    })?;
    let Json::Object(mut members) = json else { return Err("it is no JSON object".to_owned()) };
    match members.remove(USER_ID) {
        Some(Json::String(user_id)) => document(&user_id, members),
        Some(_) => Err("its user_id is no string".to_owned()),
        None => Err("it has no user_id".to_owned()),
    }
}

fn of_row(names: &[String], fields: Vec<String>) -> Result<(Key, Value), String> {
    if fields.len() != names.len() {
        return Err(format!("it has {} fields, and the header has {}", fields.len(), names.len()));
    }
    if fields.iter().any(|field| field.contains('\0')) {
        return Err("a field contains U+0000".to_owned());
    }
    let mut members: BTreeMap<String, Json> =
        names.iter().cloned().zip(fields.into_iter().map(Json::String)).collect();
    match members.remove(USER_ID) {
        Some(Json::String(user_id)) => document(&user_id, members),
        _ => Err("it has no user_id".to_owned()),
    }
}

fn document(user_id: &str, members: BTreeMap<String, Json>) -> Result<(Key, Value), String> {
    if user_id.is_empty() {
        return Err("its user_id is empty".to_owned());
    }
    if user_id.len() > MAX_RECIPIENT {
        return Err(format!(
            "its user_id is longer than {MAX_RECIPIENT} bytes, so that no intent can name it"
        ));
    }
    let key = Key::new(&format!("{USERS_PREFIX}{user_id}")).map_err(|error| error.to_string())?;
    if members.get(EMAIL).is_some_and(|email| email.as_str().is_none()) {
        return Err("its email is no string".to_owned());
    }
    Ok((key, Value::from(&Json::Object(members))))
}

#[cfg(test)]
mod tests;
