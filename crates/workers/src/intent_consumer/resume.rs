//! Where to read on: at the beginning of a term, after a failure, and whenever the stores disagree.

use super::*;

impl<E, I, A, O, D, C> IntentConsumer<E, I, A, O, D, C>
where
    E: Election,
    I: IntentStream,
    A: AcceptanceStore,
    O: OffsetStore,
    D: UserDirectory,
    C: Clock,
{
    /// Finds out where to read on, and shuts out whoever led before. PostgreSQL has the last word; the bookmark counts
    /// where it has none. The first read asks for `count` entries. `None` if somebody with a higher fence leads.
    pub(super) async fn resume(&self, fence: Fence, count: usize) -> Result<Option<Position>, StoreError> {
        let stream = self.settings.stream.as_str();
        let progress = match self.store.claim_progress(stream, fence).await? {
            Claim::Unread => None,
            Claim::At(id) => Some(id),
            Claim::Deposed(higher) => return self.give_way(higher).await.map(|()| None),
        };
        let bookmark = self.offsets.load(stream).await?;
        let state = self.intents.inspect().await?;
        let mut position = Position {
            fence,
            settled: self.resume_after(progress, &bookmark),
            progress,
            progress_seen: Instant::now(),
            ahead: VecDeque::new(),
            reads: Reads::new(count),
            look_first: true,
            to_bookmark: None,
            gap_reported: EntryId::ZERO,
        };
        if state.last_generated < position.settled {
            self.start_over(&mut position, state).await?;
        } else {
            self.report_gap(&mut position, state);
        }
        let here = Progress { fence, last_entry_id: position.settled };
        if self.offsets.reset(stream, here).await? == Swap::Conflict
            && let Bookmark::At(mark) = self.offsets.load(stream).await?
        {
            return self.give_way(mark.fence).await.map(|()| None);
        }
        self.status.moved_to(position.settled);
        tracing::info!(stream, resume_after = %position.settled, fence, "intake reads the stream");
        Ok(Some(position))
    }

    fn resume_after(&self, progress: Option<EntryId>, bookmark: &Bookmark) -> EntryId {
        let stream = self.settings.stream.as_str();
        match (progress, bookmark) {
            (Some(progress), Bookmark::At(mark)) if mark.last_entry_id > progress => {
                tracing::warn!(
                    stream,
                    offset = %mark.last_entry_id,
                    resume_after = %progress,
                    "PostgreSQL is behind the offset in Redis: intake resumes from PostgreSQL"
                );
                progress
            }
            (Some(progress), Bookmark::At(_)) => progress,
            (Some(progress), Bookmark::Missing | Bookmark::Garbled(_)) => {
                tracing::warn!(
                    stream,
                    resume_after = %progress,
                    "the offset in Redis is lost or garbled: intake resumes from PostgreSQL"
                );
                progress
            }
            (None, Bookmark::At(mark)) => mark.last_entry_id,
            (None, Bookmark::Missing) => EntryId::ZERO,
            (None, Bookmark::Garbled(_)) => {
                tracing::warn!(
                    stream,
                    "the offset in Redis is garbled and PostgreSQL knows none: intake reads from the beginning"
                );
                EntryId::ZERO
            }
        }
    }

    /// A fence above our own, although we were elected: the database that gives fences out was set back, or the term is
    /// over and we have not noticed. The next term, whoever has it, will be above that fence.
    async fn give_way(&self, higher: Fence) -> Result<(), StoreError> {
        tracing::warn!(
            stream = self.settings.stream,
            fence = higher,
            "a higher fence is there: this replica gives way"
        );
        self.election.raise_above(higher).await
    }

    /// The stream was deleted and made anew: its ids begin again below what was read.
    async fn start_over(&self, position: &mut Position, state: StreamState) -> Result<(), StoreError> {
        let stream = self.settings.stream.as_str();
        tracing::warn!(stream, offset = %position.settled, last_generated = %state.last_generated,
            "the stream was made anew: intake reads it from the beginning");
        if self.store.restart_progress(stream, position.fence).await? == Swap::Conflict
            && self.store.load_progress(stream).await?.is_some()
        {
            let problem = "a consumer with a higher fence is at work".into();
            return Err(StoreError::Unavailable { operation: "start the intake over", source: problem });
        }
        position.settled = EntryId::ZERO;
        position.progress = position.progress.map(|_| EntryId::ZERO);
        position.ahead.clear();
        Ok(())
    }

    /// Entries that were trimmed before they were read are lost to the service; all it can do is say so.
    fn report_gap(&self, position: &mut Position, state: StreamState) {
        let after = position.settled;
        let gone_to = match state.first {
            Some(first) if first > after && after > EntryId::ZERO => first,
            None if state.last_generated > after && after > EntryId::ZERO => state.last_generated,
            _ => return,
        };
        if gone_to > position.gap_reported {
            position.gap_reported = gone_to;
            tracing::warn!(stream = self.settings.stream, after = %after, before = %gone_to,
                "the stream was trimmed past the offset: entries between these ids, if there were any, are lost");
        }
    }

    /// Nothing came: is it still the stream that was read, and is nothing missing in it?
    pub(super) async fn look_around(&self, position: &mut Position) -> Result<Pass, StoreError> {
        let state = self.intents.inspect().await?;
        if state.last_generated < position.settled {
            return Ok(Pass::Lost);
        }
        // While nothing comes, no transaction would notice that PostgreSQL was set back.
        if position.progress_seen.elapsed() > PROGRESS_LOOK {
            let progress = self.store.load_progress(&self.settings.stream).await?;
            if progress.map(|progress| progress.last_entry_id) != position.progress {
                return Ok(Pass::Lost);
            }
            position.progress_seen = Instant::now();
        }
        // An entry that came since the read shows as the first one, too: only a stream that is empty tells of a loss.
        if state.first.is_none() {
            self.report_gap(position, state);
        }
        Ok(Pass::Onward)
    }
}
