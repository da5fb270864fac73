//! Erasing a user from the streams: all entries are read from the first to the last, and those that name the
//! user are deleted, or counted for a plan.

use ambient::Timestamp;
use domain::entry::{EntryId, RawFields};
use domain::erase::ErasedUser;
use domain::ports::{
    AuditStore, EntryDeletion, ErasureStore, LeaseStore, ReadLimit, StoreError, StreamEntry, StreamReader,
};

use super::{Eraser, Run};

/// The limit of one read of a stream.
const READ_LIMIT: ReadLimit = ReadLimit { entries: 512, bytes: 2 * 1024 * 1024 };

impl<S, A, R, D, L, C> Run<'_, S, A, R, D, L, C>
where
    S: ErasureStore,
    A: AuditStore,
    R: StreamReader,
    D: EntryDeletion,
    L: LeaseStore,
{
    /// Deletes or counts entries, and records how many, also if an error ended that early.
    pub(super) async fn streams(&mut self) -> Result<(), StoreError> {
        let ended = self.all_streams().await;
        if let (Some(actor), 1..) = (self.actor, self.stream_entries) {
            let tables = &self.eraser.stores.tables;
            tables.record_stream_entries(self.user, self.stream_entries, actor).await?;
        }
        ended
    }

    async fn all_streams(&mut self) -> Result<(), StoreError> {
        let Eraser { stores, settings, .. } = self.eraser;
        // Entries after the checkpoint have no outcome yet, and stay. The next run finds what they become.
        let checkpoint = stores.audited.audited_checkpoint(&settings.intents_stream).await?;
        let processed = checkpoint.map_or(EntryId::ZERO, |checkpoint| checkpoint.last_entry_id);
        self.stream(&settings.intents_stream, Some(processed), ErasedUser::is_named_by).await?;
        let mut streams: Vec<String> = settings.outbound_streams.clone();
        let known = stores.audited.list_audited_names(Timestamp::MIN).await?;
        streams.extend(known.into_iter().map(|(_, name)| name));
        streams.sort();
        streams.dedup();
        for stream in &streams {
            self.stream(stream, None, ErasedUser::is_recipient_of).await?;
        }
        self.complete &= self.unread_entries == 0;
        Ok(())
    }

    /// Deletes the entries of the user up to `processed`, or counts them for a plan, and counts later ones
    /// and unreadable ones.
    async fn stream(
        &mut self,
        stream: &str,
        processed: Option<EntryId>,
        is_of: fn(&ErasedUser, &RawFields) -> bool,
    ) -> Result<(), StoreError> {
        let stores = &self.eraser.stores;
        let Some(state) = stores.streams.inspect_stream(stream).await? else { return Ok(()) };
        let (until, processed) = (state.last_generated, processed.unwrap_or(state.last_generated));
        let mut after = EntryId::ZERO;
        for _ in 0..self.max_pages {
            if self.is_over() {
                return Ok(());
            }
            let entries = stores.streams.list_entries(stream, after, until, READ_LIMIT).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = last.id;
            let is_users = |entry: &&StreamEntry| match &entry.fields {
                Ok(fields) => is_of(self.user, fields),
                Err(_) => true,
            };
            let is_done = |entry: &&StreamEntry| entry.id <= processed && entry.fields.is_ok();
            let (done, unread): (Vec<&StreamEntry>, Vec<&StreamEntry>) =
                entries.iter().filter(is_users).partition(is_done);
            let done: Vec<EntryId> = done.into_iter().map(|entry| entry.id).collect();
            self.unread_entries += unread.len() as u64;
            self.stream_entries += match self.actor {
                Some(_) => stores.deletion.delete_entries(stream, &done).await?,
                None => done.len() as u64,
            };
        }
        self.complete = false;
        Ok(())
    }
}
