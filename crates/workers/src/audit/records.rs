//! Records with their routes, and the entries of published routes.

use ambient::Clock;
use domain::audit::{
    AuditedRecord, Discrepancy, DiscrepancyKind, PublishedFigures, RouteRow, Subject, judge_record,
    missing_entry,
};
use domain::entry::EntryId;
use domain::ports::{
    AuditStore, AuditedPage, CheckpointCache, ChildTable, FoundEntries, LeaderLookup, MAX_FOUND_ENTRIES,
    OutboundInspection, RecordCursor, StoreError, StreamReader,
};
use domain::record::NotificationId;
use domain::republish::EntryState;
use domain::route::{Channel, RouteKey};

use super::{Audit, AuditReport, LOOK_INTERVAL, MAX_LOOKS, NAME_MARGIN, retry, still_found};

/// The findings about a page.
#[derive(Default)]
struct PageFindings {
    wrong: Vec<Discrepancy>,
    published: PublishedFigures,
}

impl<S, R, O, C, L, K, P> Audit<S, R, O, C, L, K, P>
where
    S: AuditStore,
    R: StreamReader,
    O: OutboundInspection,
    C: CheckpointCache,
    L: LeaderLookup,
    K: Clock,
    P: AuditReport,
{
    /// Checks the records that were accepted before the start of the audit, or within the requested period.
    pub(super) async fn check_records(&mut self) -> Result<(), StoreError> {
        self.other_streams = self.list_other_streams().await?;
        let (mut after, until) = (RecordCursor::before(self.since), self.until);
        let mut absent: Vec<Discrepancy> = Vec::new();
        loop {
            let page = retry(async || self.stores.tables.list_audited_records(&after, until).await).await?;
            let next = page.next.clone();
            self.count(&page.records);
            let mut judged = self.judge_records(page).await?;
            self.figures.published.join(judged.published);
            // An absent stream is one discrepancy, however many routes were published to it.
            judged.wrong.retain(|found| !absent.iter().any(|known| known.is_same(found)));
            let wrong = self.look_at_records_again(judged.wrong).await?;
            absent.extend(wrong.iter().filter(|found| is_absent_stream(found)).cloned());
            let wrong = self.with_types(wrong).await?;
            self.report_all(&wrong);
            self.page_done();
            match next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    /// Lists the streams from before a rename whose last entry may belong to a record that is compared.
    async fn list_other_streams(&self) -> Result<Vec<(Channel, String)>, StoreError> {
        let since = self.since - NAME_MARGIN;
        let mut names = retry(async || self.stores.tables.list_audited_names(since).await).await?;
        names.retain(|name| !self.settings.outbound_streams.contains(name));
        Ok(names)
    }

    fn count(&mut self, records: &[AuditedRecord]) {
        let now = self.clock.now();
        self.figures.records += records.len() as u64;
        for row in records.iter().flat_map(|record| &record.routes) {
            let stuck = match row {
                RouteRow::Read(route) => route.stuck_since(now).map(|due| (&route.key, due)),
                RouteRow::Unreadable(..) => None,
            };
            self.figures.routes.add(row, stuck.is_some());
            if let Some((key, due)) = stuck {
                self.report.stuck(key, due);
            }
        }
    }

    async fn judge_records(&self, page: AuditedPage) -> Result<PageFindings, StoreError> {
        let mut judged = PageFindings::default();
        judged.wrong.extend(page.unreadable.into_iter().map(Discrepancy::from));
        judged.wrong.extend(page.records.iter().flat_map(judge_record));
        let routes = page.records.iter().flat_map(|record| &record.routes);
        let published: Vec<(Channel, &RouteKey, EntryId)> = routes
            .filter_map(|row| match row {
                RouteRow::Read(route) => Some((route.channel, &route.key, route.entry_id()?)),
                RouteRow::Unreadable(..) => None,
            })
            .collect();
        for (channel, stream) in &self.settings.outbound_streams {
            let of_channel: Vec<(&RouteKey, EntryId)> = published
                .iter()
                .filter(|(other, ..)| other == channel)
                .map(|(_, key, entry_id)| (*key, *entry_id))
                .collect();
            for chunk in of_channel.chunks(MAX_FOUND_ENTRIES) {
                self.judge_entries_of(*channel, stream, chunk, &mut judged).await?;
            }
        }
        Ok(judged)
    }

    async fn judge_entries_of(
        &self,
        channel: Channel,
        stream: &str,
        chunk: &[(&RouteKey, EntryId)],
        judged: &mut PageFindings,
    ) -> Result<(), StoreError> {
        let FoundEntries { stream: state, mut states, .. } =
            retry(async || self.stores.outbound.find_entries(channel, chunk).await).await?;
        self.look_in_other_streams(channel, chunk, &mut states).await?;
        let is_absent = states.contains(&EntryState::NoStream);
        for ((key, entry_id), entry) in chunk.iter().zip(states) {
            judged.published.add(entry);
            if entry.is_lost() {
                judged.wrong.push(missing_entry(key, *entry_id, stream, state.as_ref()));
            }
        }
        if is_absent {
            let detail =
                format!("the stream does not exist, although routes of the channel {channel} are published");
            let subject = Subject::Stream(stream.to_owned());
            let absent = Discrepancy::new(DiscrepancyKind::OutboundStreamAbsent, subject, detail);
            if !judged.wrong.iter().any(|known| known.is_same(&absent)) {
                judged.wrong.push(absent);
            }
        }
        Ok(())
    }

    /// Looks for entries that the stream lacks in the streams that it replaced. An entry that is there, or
    /// was removed there, is not lost.
    async fn look_in_other_streams(
        &self,
        channel: Channel,
        chunk: &[(&RouteKey, EntryId)],
        states: &mut [EntryState],
    ) -> Result<(), StoreError> {
        for (_, other) in self.other_streams.iter().filter(|(of, _)| *of == channel) {
            let is_lacking = |state: &EntryState| state.is_lost() || *state == EntryState::NoStream;
            let lacking: Vec<usize> = (0..states.len()).filter(|at| is_lacking(&states[*at])).collect();
            if lacking.is_empty() {
                break;
            }
            let entries: Vec<(&RouteKey, EntryId)> = lacking.iter().map(|at| chunk[*at]).collect();
            let found = retry(async || self.stores.outbound.find_entries_in(other, &entries).await).await?;
            for (at, state) in lacking.into_iter().zip(found.states) {
                if !is_lacking(&state) {
                    states[at] = state;
                }
            }
        }
        Ok(())
    }

    /// Reads the records and the entries again, and returns the discrepancies that are found each time.
    async fn look_at_records_again(
        &self,
        mut wrong: Vec<Discrepancy>,
    ) -> Result<Vec<Discrepancy>, StoreError> {
        let absent = wrong.iter().any(is_absent_stream);
        for _ in 1..MAX_LOOKS {
            if wrong.is_empty() {
                break;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            let mut ids: Vec<&NotificationId> = wrong.iter().filter_map(record_of).collect();
            ids.sort_unstable();
            ids.dedup();
            let page = retry(async || self.stores.current.get_audited_records(&ids).await).await?;
            let mut again = self.judge_records(page).await?.wrong;
            if absent {
                again.extend(self.absent_streams(&wrong).await?);
            }
            wrong = still_found(&wrong, again);
            wrong.dedup_by(|one, other| is_absent_stream(one) && one.is_same(other));
        }
        Ok(wrong)
    }

    /// Returns the discrepancies of streams that still do not exist.
    async fn absent_streams(&self, wrong: &[Discrepancy]) -> Result<Vec<Discrepancy>, StoreError> {
        let mut still = Vec::new();
        for found in wrong.iter().filter(|found| is_absent_stream(found)) {
            let Subject::Stream(stream) = &found.subject else { continue };
            if retry(async || self.stores.streams.inspect_stream(stream).await).await?.is_none() {
                still.push(found.clone());
            }
        }
        Ok(still)
    }

    /// Checks for rows without a parent. It reads whole tables, because rows have no index by time, and is
    /// skipped if the audit is limited to a period.
    pub(super) async fn check_orphans(&mut self) -> Result<(), StoreError> {
        if self.settings.since.is_some() || self.settings.until.is_some() {
            return Ok(());
        }
        for table in [ChildTable::Routes, ChildTable::DeadLetters] {
            let (kind, detail) = match table {
                ChildTable::Routes => (DiscrepancyKind::RouteWithoutRecord, "records has no row of it"),
                ChildTable::DeadLetters => {
                    (DiscrepancyKind::DeadLetterWithoutRoute, "routes has no row of it")
                }
            };
            let mut after: Option<RouteKey> = None;
            loop {
                let page =
                    retry(async || self.stores.tables.list_orphans(table, after.as_ref()).await).await?;
                // One statement reads rows and parents at one moment, so there is nothing to read again.
                let orphans = page.orphans.into_iter();
                let wrong: Vec<Discrepancy> =
                    orphans.map(|key| Discrepancy::new(kind, Subject::Route(key), detail)).collect();
                self.report_all(&wrong);
                self.page_done();
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn is_absent_stream(found: &Discrepancy) -> bool {
    found.kind == DiscrepancyKind::OutboundStreamAbsent
}

fn record_of(found: &Discrepancy) -> Option<&NotificationId> {
    match &found.subject {
        Subject::Notification(id) => Some(id),
        Subject::Route(key) => Some(&key.notification_id),
        Subject::Entry { .. } | Subject::Stream(_) => None,
    }
}
