//! One comparison of the published routes with the entries of the streams: page by page in the order of acceptance, with a pause
//! after each page, so that the traffic is not delayed.

use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::outbound::{self, OutboundEntry};
use domain::ports::{
    Append, Election, OutboundInspection, Published, PublishedEntry, RecordCursor, RepublishStore,
    StoreError, Swap, error_chain,
};
use domain::republish::{EntryState, entry_state};
use domain::route::{Channel, LiveRoute, RouteKey};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Change, Republisher, Watch};
use crate::batch_limit::BatchLimit;
use crate::passes::pause;

/// How much earlier than the window a record may have been accepted whose routes are compared.
const ACCEPTED_EARLIER: Duration = Duration::from_secs(3_600);
/// Records that are listed together.
const PAGE_RECORDS: usize = 256;
/// Entries that are looked for together.
const CHUNK_ENTRIES: usize = 256;
/// Routes whose content is read and appended together.
const APPEND_ROUTES: usize = 64;
/// The most bytes of one append.
const APPEND_BYTES: usize = 1024 * 1024;
/// The longest pause between two pages, which otherwise is as long as the page before took.
const MAX_REST: Duration = Duration::from_secs(1);

/// What a comparison found in one channel.
#[derive(Debug, Default)]
struct Tally {
    present: u64,
    trimmed: u64,
    deleted: u64,
    without_stream: u64,
    /// Routes that a publisher or another transaction held: the comparison is repeated.
    held: u64,
    republished: u64,
    /// The lowest and the highest id among those that were lost.
    range: Option<(EntryId, EntryId)>,
}

impl Tally {
    fn republished(&mut self, lost: EntryId) {
        self.republished += 1;
        let (first, last) = self.range.unwrap_or((lost, lost));
        self.range = Some((first.min(lost), last.max(lost)));
    }
}

/// Which routes a comparison is about.
struct Scope {
    /// Published at this time or later.
    published_since: Timestamp,
    /// Of records that were accepted at this time or later.
    accepted_since: Timestamp,
    /// And no later than when the comparison began.
    until: Timestamp,
}

impl<E, S, O, C> Republisher<E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    /// One comparison; true if it is complete.
    pub(super) async fn compare(
        &self,
        changes: Vec<Change<'_>>,
        watch: &mut Watch,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let until = self.clock.now();
        let last_seen = changes.iter().map(|change| change.former.seen_at).min().unwrap_or(until);
        let published_since = last_seen.min(until) - self.settings.window;
        let scope = Scope { published_since, accepted_since: published_since - ACCEPTED_EARLIER, until };
        for Change { channel, former, now } in changes.iter().filter(|_| !watch.reported) {
            tracing::warn!(channel = channel.as_str(), stream = now.stream,
                former_run_id = former.run_id, run_id = now.run_id,
                former_last_generated = %former.last_generated, last_generated = %now.last_generated,
                published_since = %scope.published_since, accepted_since = %scope.accepted_since,
                "Redis may have lost published entries: comparing the stream with what was published; \
                 records accepted earlier are not checked");
        }
        watch.reported = true;
        let mut streams: Vec<(Change<'_>, Tally)> =
            changes.into_iter().map(|change| (change, Tally::default())).collect();
        let compared = self.compare_pages(&mut streams, &scope, stop).await;
        report(&streams);
        Ok(compared? && streams.iter().all(|(_, tally)| tally.held == 0))
    }

    /// Page after page; false if the service stops before the last.
    async fn compare_pages(
        &self,
        streams: &mut [(Change<'_>, Tally)],
        scope: &Scope,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let mut after = RecordCursor::before(scope.accepted_since);
        let mut limit = BatchLimit::new(PAGE_RECORDS);
        loop {
            let (started, records) = (Instant::now(), limit.get());
            let listed =
                self.store.list_published_entries(scope.published_since, &after, scope.until, records).await;
            let page = match listed {
                Err(StoreError::TimedOut { .. }) if limit.timed_out(records) => continue,
                page => page?,
            };
            limit.succeeded(records, started.elapsed());
            report_corrupt(&page.corrupt);
            for (change, tally) in streams.iter_mut() {
                let of_channel: Vec<&PublishedEntry> =
                    page.entries.iter().filter(|entry| entry.channel == change.channel).collect();
                for chunk in of_channel.chunks(CHUNK_ENTRIES) {
                    self.compare_chunk(change.channel, chunk, tally, stop).await?;
                }
            }
            self.health.mark_progress();
            let Some(next) = page.next else { return Ok(true) };
            after = next;
            if !pause(stop, started.elapsed().min(MAX_REST)).await {
                return Ok(false);
            }
        }
    }

    async fn compare_chunk(
        &self,
        channel: Channel,
        chunk: &[&PublishedEntry],
        tally: &mut Tally,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let asked: Vec<(&RouteKey, EntryId)> =
            chunk.iter().map(|entry| (&entry.key, entry.entry_id)).collect();
        let (state, found) = self.outbound.find_entries(channel, &asked).await?;
        let mut missing = Vec::new();
        for (entry, present) in chunk.iter().zip(found) {
            match entry_state(entry.entry_id, present, state.as_ref()) {
                EntryState::Present => tally.present += 1,
                EntryState::Trimmed => tally.trimmed += 1,
                EntryState::Deleted => tally.deleted += 1,
                EntryState::NoStream => tally.without_stream += 1,
                EntryState::Missing => missing.push(*entry),
            }
        }
        for missing in missing.chunks(APPEND_ROUTES) {
            if stop.is_cancelled() {
                break;
            }
            self.republish(channel, missing, tally, stop).await?;
        }
        Ok(())
    }

    /// Appends the entries of routes again, and records their new ids. Routes that were deleted meanwhile are left out.
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
        let given: Vec<_> = entries.iter().map(|(route, entry)| (&route.key, entry)).collect();
        let receipt_ttl = self.settings.dedupe_ttl.max(self.settings.window);
        let appends = self.outbound.append_again(channel, &given, receipt_ttl).await?;
        let (mut done, mut failed) = (Vec::with_capacity(entries.len()), None);
        for ((route, _), append) in entries.iter().zip(appends) {
            match append {
                Append::Done(entry_id) => {
                    done.push(Published { key: route.key.clone(), version: route.version, entry_id });
                }
                Append::LeaseLost => tally.held += 1,
                Append::Outage(message) => {
                    failed = Some(StoreError::Unavailable { operation: OPERATION, source: message.into() });
                }
                Append::Refused(message) => {
                    failed = Some(StoreError::Refused { operation: OPERATION, source: message.into() });
                }
            }
        }
        self.record(channel, &done, missing, tally, stop).await?;
        failed.map_or(Ok(()), Err)
    }

    /// Records the new ids, in halves if PostgreSQL takes too long or refuses some. A row that is locked, or that comes after
    /// the stop, is left to the next comparison, which finds its receipt; one that is refused keeps its old id.
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
                Ok(swaps) => {
                    let applied = part.iter().zip(swaps).filter(|(_, swap)| *swap == Swap::Applied);
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
                (StoreError::Locked { .. }, [_]) => tally.held += 1,
                (error @ StoreError::Refused { .. }, [route]) => {
                    tracing::error!(channel = channel.as_str(), notification_id = %route.key.notification_id,
                        route_id = route.key.loggable_route_id(), error = error_chain(&error),
                        "an entry was appended again and its new id cannot be written down");
                }
                (
                    StoreError::Locked { .. } | StoreError::Refused { .. } | StoreError::TimedOut { .. },
                    [_, _, ..],
                ) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                (error, _) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Logs how many rows cannot be read, and why the first of them cannot.
fn report_corrupt(corrupt: &[StoreError]) {
    if let Some(first) = corrupt.first() {
        tracing::error!(
            routes = corrupt.len(),
            error = error_chain(first),
            "published routes cannot be read and are not compared"
        );
    }
}

fn report(streams: &[(Change<'_>, Tally)]) {
    for (Change { channel, now, .. }, tally) in streams {
        let (channel, stream) = (channel.as_str(), now.stream.as_str());
        if tally.without_stream > 0 {
            tracing::error!(
                channel,
                stream,
                entries = tally.without_stream,
                "the outbound stream is absent or empty: nothing is appended again"
            );
        }
        if let Some((first, last)) = tally.range {
            tracing::warn!(channel, stream, entries = tally.republished, first_entry_id = %first, last_entry_id = %last,
                "entries that Redis had lost were appended again");
        }
        tracing::info!(
            channel,
            stream,
            present = tally.present,
            trimmed = tally.trimmed,
            deleted = tally.deleted,
            republished = tally.republished,
            held = tally.held,
            "the stream was compared with the published routes"
        );
    }
}
