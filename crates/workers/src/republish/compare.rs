//! One comparison of the published routes with the entries of the streams: page by page from the newest
//! record to the oldest, with a pause after each page, so that the traffic is not delayed.
//!
//! A server loses the newest entries, so they are appended again with the first pages. After an error the
//! comparison continues with the page that failed. A completion that is committed after its page was read is
//! found when the comparison is repeated.

use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::outbound::{self, OutboundEntry};
use domain::ports::{
    Append, Completion, Election, MAX_FOUND_ENTRIES, OutboundInspection, Published, PublishedEntry,
    RecordCursor, RepublishStore, StoreError, error_chain,
};
use domain::republish::{EntryState, SeenStream, was_lost_before};
use domain::route::{Channel, LiveRoute, RouteKey};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::losses::Losses;
use super::tally::{Tally, report, widen};
use super::{Republisher, Suspect};
use crate::batch_limit::BatchLimit;
use crate::pause::pause;

/// The time before the window in which a compared record may have been accepted: its routes may have been
/// published late, and the clock of the replica that accepted it may lag PostgreSQL's.
pub(super) const ACCEPTED_EARLIER: Duration = Duration::from_secs(3_600);
/// The number of records in one page.
const PAGE_RECORDS: usize = 256;
/// The number of routes whose content is read and appended together.
const APPEND_ROUTES: usize = 64;
/// The most bytes of one append.
const APPEND_BYTES: usize = 1024 * 1024;
/// The longest pause between two pages. A shorter one is as long as the page before took.
const MAX_REST: Duration = Duration::from_secs(1);

/// A comparison that is not complete.
pub(super) struct Comparison {
    /// The compared streams, and the findings in the pages so far.
    streams: Vec<(Suspect, Tally)>,
    /// The position in the records. Those before it are left to compare.
    before: RecordCursor,
    limit: BatchLimit,
}

impl Comparison {
    fn new(streams: Vec<(Suspect, Tally)>) -> Self {
        let newest = RecordCursor::before(Timestamp::MAX);
        Self { streams, before: newest, limit: BatchLimit::new(PAGE_RECORDS) }
    }

    /// True if its pages are valid for these streams: no other change followed, and no other replica has
    /// compared them.
    fn is_of(&self, suspects: &[Suspect]) -> bool {
        let is_same = |((before, _), suspect): (&(Suspect, Tally), &Suspect)| {
            before.now.seen.stream == suspect.now.seen.stream
                && (&before.former, before.since) == (&suspect.former, suspect.since)
                && !suspect.now.may_have_lost(&before.now.seen)
        };
        self.streams.len() == suspects.len() && self.streams.iter().zip(suspects).all(is_same)
    }

    /// Removes the findings of a page that is compared again. Appended entries stay counted: the page then
    /// finds them in the stream.
    fn forget_page(&mut self, before: &[Tally]) {
        for ((_, tally), before) in self.streams.iter_mut().zip(before) {
            tally.forget_page(before);
        }
    }
}

impl<E, S, O, C> Republisher<E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    /// The time of acceptance of the oldest records that a comparison of these streams reads.
    // MODEL-34
    pub(super) fn accepted_since(&self, suspects: &[Suspect]) -> Timestamp {
        let since = suspects.iter().map(|suspect| suspect.since).min().unwrap_or(Timestamp::MIN);
        since - self.settings.window - ACCEPTED_EARLIER
    }

    /// Begins a comparison, or continues the `unfinished` one of the same streams. Returns true if it is
    /// complete. The rest is stored in `unfinished`: after an error or a stop, from the page that was not
    /// compared on; the whole comparison if routes were held.
    pub(super) async fn compare(
        &self,
        suspects: Vec<Suspect>,
        unfinished: &mut Option<Comparison>,
        losses: &mut Losses,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let accepted_since = self.accepted_since(&suspects);
        let same = unfinished.take().filter(|comparison| comparison.is_of(&suspects));
        let mut comparison = match same {
            Some(Comparison { streams, before, limit }) => {
                let tallies = streams.into_iter().map(|(_, tally)| tally);
                Comparison { streams: suspects.into_iter().zip(tallies).collect(), before, limit }
            }
            None => {
                suspects.iter().for_each(|suspect| report_begin(suspect, accepted_since));
                Comparison::new(suspects.into_iter().map(|suspect| (suspect, Tally::default())).collect())
            }
        };
        let compared = self.compare_pages(&mut comparison, losses, accepted_since, stop).await;
        report(&mut comparison.streams, matches!(compared, Ok(true)));
        if !matches!(compared, Ok(true)) {
            *unfinished = Some(comparison);
            return compared;
        }
        // MODEL-29
        let is_complete = comparison.streams.iter().all(|(_, tally)| tally.held == 0);
        for (suspect, tally) in &comparison.streams {
            losses.report(suspect, tally, is_complete, &self.metrics);
        }
        if !is_complete {
            let streams = comparison.streams.into_iter().map(|(suspect, _)| (suspect, Tally::default()));
            *unfinished = Some(Comparison::new(streams.collect()));
        }
        Ok(is_complete)
    }

    /// Compares page after page, down to the oldest record. Records that are accepted meanwhile are before
    /// the first page: they are published to the current server. Returns false if the service stops before
    /// the last page.
    async fn compare_pages(
        &self,
        comparison: &mut Comparison,
        losses: &Losses,
        accepted_since: Timestamp,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        loop {
            let (started, records) = (Instant::now(), comparison.limit.get());
            let listed = self.store.list_published_entries(&comparison.before, accepted_since, records).await;
            let page = match listed {
                Err(StoreError::TimedOut { .. }) if comparison.limit.failed(records) => continue,
                page => page?,
            };
            comparison.limit.succeeded(records, started.elapsed());
            report_corrupt(&page.corrupt);
            let tallies: Vec<Tally> = comparison.streams.iter().map(|(_, tally)| *tally).collect();
            let compared = self.compare_page(&page.entries, &mut comparison.streams, losses, stop).await;
            self.health.mark_progress();
            // After a stop, the rest of the page was not compared.
            if compared.is_err() || stop.is_cancelled() {
                comparison.forget_page(&tallies);
                return compared.map(|()| false);
            }
            let Some(next) = page.next else { return Ok(true) };
            comparison.before = next;
            if !pause(stop, started.elapsed().min(MAX_REST)).await {
                return Ok(false);
            }
        }
    }

    async fn compare_page(
        &self,
        entries: &[PublishedEntry],
        streams: &mut [(Suspect, Tally)],
        losses: &Losses,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        for (suspect, tally) in streams {
            let (channel, former) = (suspect.now.channel, losses.former(suspect));
            // The entries of a page are appended in the order of acceptance.
            let of_channel: Vec<&PublishedEntry> =
                entries.iter().rev().filter(|entry| entry.channel == channel).collect();
            for chunk in of_channel.chunks(MAX_FOUND_ENTRIES) {
                self.compare_chunk((channel, former), chunk, tally, stop).await?;
                self.health.mark_progress();
            }
        }
        Ok(())
    }

    async fn compare_chunk(
        &self,
        (channel, former): (Channel, Option<&SeenStream>),
        chunk: &[&PublishedEntry],
        tally: &mut Tally,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let asked: Vec<(&RouteKey, EntryId)> =
            chunk.iter().map(|entry| (&entry.key, entry.entry_id)).collect();
        let found = self.outbound.find_entries(channel, &asked).await?;
        // A loss from before the change was reported then.
        let was_reported = |entry: &PublishedEntry| {
            former.is_some_and(|former| was_lost_before(entry.entry_id, found.stream.as_ref(), former))
        };
        let mut missing = Vec::new();
        for (entry, state) in chunk.iter().zip(found.states) {
            match state {
                EntryState::Present => tally.present += 1,
                EntryState::Trimmed => tally.trimmed += 1,
                EntryState::Deleted => tally.deleted += 1,
                EntryState::NoStream | EntryState::Lost if was_reported(entry) => tally.lost_before += 1,
                EntryState::NoStream => tally.without_stream += 1,
                EntryState::Lost => {
                    tally.lost += 1;
                    widen(&mut tally.lost_range, entry.entry_id);
                }
                EntryState::Missing => missing.push(*entry),
            }
        }
        for missing in missing.chunks(APPEND_ROUTES) {
            if stop.is_cancelled() {
                break;
            }
            self.republish(channel, missing, tally, stop).await?;
            self.health.mark_progress();
        }
        Ok(())
    }

    /// Appends the entries of routes again, and records their new ids. Routes that were deleted meanwhile are
    /// left out.
    async fn republish(
        &self,
        channel: Channel,
        missing: &[&PublishedEntry],
        tally: &mut Tally,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let keys: Vec<&RouteKey> = missing.iter().map(|entry| &entry.key).collect();
        let page = self.store.get_published_routes(&keys).await?;
        report_corrupt(&page.corrupt);
        let mut entries: Vec<(&LiveRoute, OutboundEntry<'_>)> = Vec::with_capacity(page.routes.len());
        let mut bytes = 0;
        for route in &page.routes {
            let entry = match outbound::encode(route) {
                Ok(entry) => entry,
                Err(error) => {
                    tally.refused += 1;
                    tracing::error!(channel = channel.as_str(), notification_id = %route.key.notification_id,
                        route_id = route.key.loggable_route_id(), error = error_chain(&error),
                        "a lost entry cannot be encoded and is not appended again");
                    continue;
                }
            };
            if bytes > 0 && bytes + entry.size() > APPEND_BYTES {
                self.append(channel, &entries, missing, tally, stop).await?;
                entries.clear();
                bytes = 0;
            }
            bytes += entry.size();
            entries.push((route, entry));
        }
        self.append(channel, &entries, missing, tally, stop).await
    }

    async fn append(
        &self,
        channel: Channel,
        entries: &[(&LiveRoute, OutboundEntry<'_>)],
        missing: &[&PublishedEntry],
        tally: &mut Tally,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "append lost entries again";
        if entries.is_empty() {
            return Ok(());
        }
        let given: Vec<_> = entries.iter().map(|(route, entry)| (*route, entry)).collect();
        // MODEL-32
        let marker_ttl = self.settings.dedupe_ttl.max(self.settings.window);
        let appends = self.outbound.append_again(channel, &given, marker_ttl).await?;
        let (mut done, mut outage) = (Vec::with_capacity(entries.len()), None);
        for ((route, _), append) in entries.iter().zip(appends) {
            match append {
                Append::Done(entry) => {
                    done.push(Published { key: route.key.clone(), version: route.version, entry });
                }
                Append::LeaseLost => tally.held += 1,
                Append::Outage(message) => {
                    outage = Some(StoreError::Unavailable { operation: OPERATION, source: message.into() });
                }
                Append::Refused(cause) => {
                    tally.refused += 1;
                    tracing::error!(channel = channel.as_str(), notification_id = %route.key.notification_id,
                        route_id = route.key.loggable_route_id(), cause,
                        "a lost entry is refused by the stream and is not appended again");
                }
            }
        }
        self.record(channel, &done, missing, tally, stop).await?;
        outage.map_or(Ok(()), Err)
    }

    /// Records the new ids, in halves if PostgreSQL takes too long or refuses some. A row that is locked or
    /// too slow, or that comes after the stop, is left to the next comparison, which finds its marker. A row
    /// that is refused keeps its old id.
    async fn record(
        &self,
        channel: Channel,
        done: &[Published],
        missing: &[&PublishedEntry],
        tally: &mut Tally,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut parts = vec![done];
        while let Some(part) = parts.pop().filter(|part| !part.is_empty() && !stop.is_cancelled()) {
            let error = match self.store.replace_published_entries(part, now).await {
                Ok(replaced) => {
                    tally.held += replaced.iter().filter(|done| **done == Completion::Locked).count() as u64;
                    let applied = part.iter().zip(replaced).filter(|(_, done)| *done == Completion::Applied);
                    let keys: Vec<&RouteKey> = applied.map(|(route, _)| &route.key).collect();
                    self.metrics.republished(channel, keys.len());
                    for entry in missing.iter().filter(|entry| keys.contains(&&entry.key)) {
                        tally.republished(entry.entry_id);
                    }
                    continue;
                }
                Err(error) => error,
            };
            match (error, part) {
                // The table is locked, or a trigger waits for something: halves would wait as long, one after
                // the other.
                (StoreError::Locked { .. }, _) | (StoreError::TimedOut { .. }, [_]) => {
                    tally.held += part.len() as u64;
                }
                (error @ StoreError::Refused { .. }, [route]) => {
                    tracing::error!(channel = channel.as_str(), notification_id = %route.key.notification_id,
                        route_id = route.key.loggable_route_id(), error = error_chain(&error),
                        "an entry was appended again and its new id cannot be written down");
                }
                (StoreError::Refused { .. } | StoreError::TimedOut { .. }, [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                (error, _) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Logs the change. Does nothing if a comparison is repeated, because its change was logged before.
fn report_begin(Suspect { now, former, .. }: &Suspect, accepted_since: Timestamp) {
    let (channel, seen) = (now.channel.as_str(), &now.seen);
    if let Some(former) = former {
        tracing::warn!(channel, stream = seen.stream.as_str(),
            former_run_id = &*former.server.run_id, run_id = &*seen.server.run_id,
            former_last_generated = %former.last_generated, last_generated = %seen.last_generated,
            %accepted_since,
            "Redis may have lost published entries: comparing the stream with what was published; \
             records accepted earlier are not checked");
    }
}

/// Logs the number of rows that cannot be read, and the error of the first of them.
fn report_corrupt(corrupt: &[StoreError]) {
    if let Some(first) = corrupt.first() {
        tracing::error!(
            routes = corrupt.len(),
            error = error_chain(first),
            "published routes cannot be read and are not compared"
        );
    }
}
