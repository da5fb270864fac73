//! The newest entries of a stream, read backwards from its end to find events whose markers have expired.
//!
//! Entries of other producers may be of any size. So pages are read on a connection of their own that accepts
//! a bounded reply, as intake does, and are small where entries are large: no script blocks Redis while it
//! copies payloads.

use domain::entry::EntryId;
use domain::ports::StoreError;
use redis::cmd;

use super::RedisOutboxStreams;
use crate::blocking::ask_within;
use crate::connect::RedisClient;
use crate::error::TimedOut;
use crate::intents::entries;
use crate::socket::Connection;

/// The maximum number of entries that are read of a stream.
const MAX_ENTRIES: usize = 100_000;
/// The maximum number of bytes that are read of a stream.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// The maximum number of entries that are read with one call.
const MAX_PAGE_ENTRIES: usize = 16;
/// The maximum size of a reply: no event of an outbox has a larger entry.
const MAX_PAGE_BYTES: usize = 17 * 1024 * 1024;
/// The size of a page above which the next page has fewer entries.
const PREFERRED_PAGE_BYTES: usize = 1024 * 1024;

/// The values of a field in the newest entries of a stream, a page at a time.
pub struct NewestEntries {
    client: RedisClient,
    stream: String,
    field: &'static str,
    /// A field and the value that it must have.
    with: Option<(&'static str, Vec<u8>)>,
    connection: Option<Connection>,
    /// The oldest entry that was read.
    before: Option<EntryId>,
    page_entries: usize,
    /// The number of entries still to be read one by one, because one of them was too large for a page.
    singles: usize,
    entries: usize,
    bytes: usize,
    is_over: bool,
}

impl std::fmt::Debug for NewestEntries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewestEntries").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl RedisOutboxStreams {
    /// The values of `field` in the newest entries of a stream, of those that have `with` if it is given: a
    /// field and its value.
    pub fn newest_entries(
        &self,
        stream: &str,
        field: &'static str,
        with: Option<(&'static str, &str)>,
    ) -> NewestEntries {
        NewestEntries {
            client: self.client.for_key(stream),
            stream: stream.to_owned(),
            field,
            with: with.map(|(name, value)| (name, value.as_bytes().to_vec())),
            connection: None,
            before: None,
            page_entries: 1,
            singles: 0,
            entries: 0,
            bytes: 0,
            is_over: false,
        }
    }
}

impl NewestEntries {
    /// True if nothing more is read: the stream ended, a limit of one reading was reached, or the next entry
    /// is larger than that of any event.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The values of the next page, from the newest entry back. An empty page is not necessarily the last. If
    /// the call is dropped, the next one reads the page again.
    pub async fn read(&mut self) -> Result<Vec<Vec<u8>>, StoreError> {
        const OPERATION: &str = "look for the entries of events";
        if self.is_over {
            return Ok(Vec::new());
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.dedicated(OPERATION).await?,
        };
        let asked = if self.singles > 0 { 1 } else { self.page_entries.min(MAX_ENTRIES - self.entries) };
        let begin = self.before.map_or_else(|| "+".to_owned(), |before| format!("({before}"));
        let command =
            cmd("XREVRANGE").arg(&self.stream).arg(begin).arg("-").arg("COUNT").arg(asked).to_owned();
        let bound = self.client.operation_timeout();
        let reply = match ask_within(OPERATION, &mut connection, &command, MAX_PAGE_BYTES, bound).await {
            Ok(Some(reply)) => reply,
            // A single entry of this size does not belong to any event, and its id cannot be found cheaply.
            Ok(None) if asked == 1 => {
                self.is_over = true;
                return Ok(Vec::new());
            }
            Ok(None) => {
                self.singles = asked;
                return Ok(Vec::new());
            }
            Err(error) if is_late(&error) && asked > 1 => {
                self.singles = asked;
                return Ok(Vec::new());
            }
            // The key is not a stream.
            Err(StoreError::Refused { .. }) => {
                self.is_over = true;
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let received = connection.received();
        let page = entries(OPERATION, reply)?;
        self.connection = Some(connection);
        self.before = page.last().map(|last| last.id).or(self.before);
        self.entries += asked;
        self.bytes += received;
        self.is_over = page.len() < asked || self.entries >= MAX_ENTRIES || self.bytes >= MAX_BYTES;
        self.singles = self.singles.saturating_sub(1);
        if received > PREFERRED_PAGE_BYTES || self.singles > 0 {
            self.page_entries = (asked / 2).max(1);
        } else if received <= PREFERRED_PAGE_BYTES / 2 {
            self.page_entries = (asked * 2).min(MAX_PAGE_ENTRIES);
        }
        let value_of = |entry: &domain::entry::RawEntry, field: &str| {
            entry.fields.0.iter().find(|(name, _)| name == field.as_bytes()).map(|(_, value)| value.clone())
        };
        let value = |entry: domain::entry::RawEntry| match &self.with {
            Some((name, value)) if value_of(&entry, name).as_ref() != Some(value) => None,
            _ => value_of(&entry, self.field),
        };
        Ok(page.into_iter().filter_map(value).collect())
    }
}

/// True if the time limit of the read passed, rather than that the server refused or ended the connection.
fn is_late(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { source, .. } if source.is::<TimedOut>())
}
