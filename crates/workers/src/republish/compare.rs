//! One comparison of the published routes with the entries of the streams: page by page in the order of acceptance, with a pause
//! after each page, so that the traffic is not delayed.

use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::outbound::{self, OutboundEntry};
use domain::ports::{
    Append, Completion, Election, MAX_FOUND_ENTRIES, OutboundInspection, Published, PublishedEntry,
    RecordCursor, RepublishStore, StoreError, error_chain,
};
use domain::republish::{EntryState, SeenStream, entry_state};
use domain::route::{Channel, LiveRoute, RouteKey};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::losses::{Losses, is_known};
use super::{Observed, Republisher, Suspect, TOUCH_INTERVAL};
use crate::batch_limit::BatchLimit;
use crate::passes::pause;

/// How much earlier than the window a record may have been accepted whose routes are compared: its routes may have been published
/// late, and the clock of the replica that accepted it may be behind PostgreSQL's.
const ACCEPTED_EARLIER: Duration = Duration::from_secs(3_600);
/// Records that are listed together.
const PAGE_RECORDS: usize = 256;
/// Routes whose content is read and appended together.
const APPEND_ROUTES: usize = 64;
/// The most bytes of one append.
const APPEND_BYTES: usize = 1024 * 1024;
/// The longest pause between two pages, which otherwise is as long as the page before took.
const MAX_REST: Duration = Duration::from_secs(1);

/// What a comparison found in one channel.
#[derive(Debug, Default)]
pub(super) struct Tally {
    present: u64,
    trimmed: u64,
    deleted: u64,
    pub(super) without_stream: u64,
    /// Entries that the stream lost before its present first entry, and the lowest and the highest of their ids.
    pub(super) lost: u64,
    pub(super) lost_range: Option<(EntryId, EntryId)>,
    /// Entries that had been lost, and were reported, before the change.
    lost_before: u64,
    /// Lost entries that cannot be encoded, or that the stream refused.
    pub(super) refused: u64,
    /// Routes that a publisher or another transaction held: the comparison is repeated.
    held: u64,
    republished: u64,
    /// The lowest and the highest id among those that were appended again.
    range: Option<(EntryId, EntryId)>,
}

fn widen(range: &mut Option<(EntryId, EntryId)>, id: EntryId) {
    let (first, last) = range.unwrap_or((id, id));
    *range = Some((first.min(id), last.max(id)));
}

impl Tally {
    fn republished(&mut self, lost: EntryId) {
        self.republished += 1;
        widen(&mut self.range, lost);
    }
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
        suspects: &[Suspect<'_>],
        losses: &mut Losses,
        is_reported: bool,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let since = suspects.iter().map(|suspect| suspect.since).min().unwrap_or(Timestamp::MIN);
        let accepted_since = since - self.settings.window - ACCEPTED_EARLIER;
        let Some(last) = self.store.get_last_record().await? else { return Ok(true) };
        let names = self.store.list_outbound_names(accepted_since - TOUCH_INTERVAL * 2).await?;
        let mut streams = Vec::with_capacity(suspects.len());
        for suspect in suspects {
            let Suspect { former, now: Observed { channel, seen: now, .. }, .. } = suspect;
            let (channel, stream) = (channel.as_str(), now.stream.as_str());
            let other = names.iter().find(|(of, name)| of.as_str() == channel && name != stream);
            if let Some((_, other)) = other {
                tracing::error!(channel, stream, other_stream = other, %accepted_since,
                    "the outbound stream is not compared, because routes of the channel were published to another stream in the \
                     same time; `notification audit` names entries that Redis lost");
                continue;
            }
            if let Some(former) = former.as_ref().filter(|_| !is_reported) {
                tracing::warn!(channel, stream,
                    former_run_id = &*former.server.run_id, run_id = &*now.server.run_id,
                    former_last_generated = %former.last_generated, last_generated = %now.last_generated,
                    %accepted_since,
                    "Redis may have lost published entries: comparing the stream with what was published; \
                     records accepted earlier are not checked");
            }
            streams.push((suspect, Tally::default()));
        }
        if streams.is_empty() {
            return Ok(true);
        }
        let compared = self.compare_pages(&mut streams, losses, (accepted_since, &last), stop).await;
        report(&streams, matches!(compared, Ok(true)));
        if !compared? {
            return Ok(false);
        }
        let is_complete = streams.iter().all(|(_, tally)| tally.held == 0);
        for (suspect, tally) in &streams {
            losses.report(suspect, tally, is_complete, &self.metrics);
        }
        Ok(is_complete)
    }

    /// Page after page, up to the record that was the last one when the comparison began: what was accepted later was published
    /// later. False if the service stops before the last.
    async fn compare_pages(
        &self,
        streams: &mut [(&Suspect<'_>, Tally)],
        losses: &Losses,
        (accepted_since, last): (Timestamp, &RecordCursor),
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let mut after = RecordCursor::before(accepted_since);
        let mut limit = BatchLimit::new(PAGE_RECORDS);
        loop {
            let (started, records) = (Instant::now(), limit.get());
            let listed = self.store.list_published_entries(&after, last, records).await;
            let page = match listed {
                Err(StoreError::TimedOut { .. }) if limit.timed_out(records) => continue,
                page => page?,
            };
            limit.succeeded(records, started.elapsed());
            report_corrupt(&page.corrupt);
            for (suspect, tally) in streams.iter_mut() {
                let (channel, former) = (suspect.now.channel, losses.former(suspect));
                let of_channel: Vec<&PublishedEntry> =
                    page.entries.iter().filter(|entry| entry.channel == channel).collect();
                for chunk in of_channel.chunks(MAX_FOUND_ENTRIES) {
                    self.compare_chunk((channel, former), chunk, tally, stop).await?;
                    self.health.mark_progress();
                }
            }
            self.health.mark_progress();
            // What is left of a page at the stop was not compared.
            if stop.is_cancelled() {
                return Ok(false);
            }
            let Some(next) = page.next else { return Ok(true) };
            after = next;
            if !pause(stop, started.elapsed().min(MAX_REST)).await {
                return Ok(false);
            }
        }
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
        let mut missing = Vec::new();
        for (entry, present) in chunk.iter().zip(found.present) {
            match entry_state(entry.entry_id, present, found.stream.as_ref()) {
                EntryState::Present => tally.present += 1,
                EntryState::Trimmed => tally.trimmed += 1,
                EntryState::Deleted => tally.deleted += 1,
                EntryState::NoStream | EntryState::Lost
                    if is_known(former, entry.entry_id, found.stream.as_ref()) =>
                {
                    tally.lost_before += 1;
                }
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
        let given: Vec<_> = entries.iter().map(|(route, entry)| (&route.key, entry)).collect();
        let receipt_ttl = self.settings.dedupe_ttl.max(self.settings.window);
        let appends = self.outbound.append_again(channel, &given, receipt_ttl).await?;
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

    /// Records the new ids, in halves if PostgreSQL takes too long or refuses some. A row that is locked or too slow, or that comes
    /// after the stop, is left to the next comparison, which finds its receipt; one that is refused keeps its old id.
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
                // The table, or what a trigger waits for: halves would wait as long, one after the other.
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

/// Logs the result for each stream; unless it `is_whole`, the comparison ended before the last record and begins again.
fn report(streams: &[(&Suspect<'_>, Tally)], is_whole: bool) {
    for (Suspect { now, .. }, tally) in streams {
        let (channel, stream) = (now.channel.as_str(), now.seen.stream.as_str());
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
            lost = tally.lost + tally.without_stream,
            lost_before = tally.lost_before,
            held = tally.held,
            whole = is_whole,
            "the stream was compared with the published routes"
        );
    }
}
