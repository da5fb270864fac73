//! The outbound streams, entry by entry.

use ambient::Clock;
use domain::audit::{Discrepancy, DiscrepancyKind, OutboundName, OutboundVerdict, judge_outbound};
use domain::entry::EntryId;
use domain::ports::{
    AuditStore, CheckpointCache, LeaderLookup, MAX_FOUND_ENTRIES, OutboundInspection, StoreError,
    StreamEntry, StreamReader,
};
use domain::route::{Channel, RouteKey};

use super::entries::{before, is_suspected};
use super::{Audit, AuditReport, LOOK_INTERVAL, MAX_LOOKS, READ_LIMIT, retry, still_found};

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
    /// Checks the entries of each stream up to the last one that existed when the check began.
    pub(super) async fn check_outbound(&mut self) -> Result<(), StoreError> {
        for (channel, stream) in self.settings.outbound_streams.clone() {
            let state = retry(async || self.stores.streams.inspect_stream(&stream).await).await?;
            let Some(state) = state else { continue };
            let (mut after, until) = (before(self.since), self.last_of(state.last_generated));
            loop {
                let page =
                    retry(async || self.stores.streams.list_entries(&stream, after, until, READ_LIMIT).await)
                        .await?;
                let Some(last) = page.last().map(|last| last.id) else { break };
                let tables = &self.stores.tables;
                let verdicts = self.judge_outbound_page(tables, channel, &stream, page).await?;
                let mut wrong = Vec::new();
                for (_, verdict) in verdicts {
                    self.figures.outbound.add(&verdict);
                    if let OutboundVerdict::Wrong(discrepancy) = verdict {
                        wrong.push(discrepancy);
                    }
                }
                let wrong = self.look_at_outbound_again(channel, &stream, wrong, (after, last)).await?;
                self.report_all(&wrong);
                self.page_done();
                after = last;
            }
        }
        Ok(())
    }

    async fn judge_outbound_page(
        &self,
        tables: &S,
        channel: Channel,
        stream: &str,
        page: Vec<StreamEntry>,
    ) -> Result<Vec<(EntryId, OutboundVerdict)>, StoreError> {
        let named = |entry: StreamEntry| (entry.id, OutboundName::of(channel, entry.fields.as_ref().ok()));
        let names: Vec<(EntryId, OutboundName)> = page.into_iter().map(named).collect();
        let keys: Vec<&RouteKey> = names.iter().filter_map(|(_, name)| key_of(name)).collect();
        let found = retry(async || tables.find_routes(&keys).await).await?;
        let cutoffs = self.cutoffs();
        let mut routes = found.iter();
        let mut verdicts = Vec::with_capacity(names.len());
        let mut second = Vec::new();
        for (id, name) in &names {
            let route = key_of(name).and_then(|_| routes.next()).and_then(Option::as_ref);
            let verdict = judge_outbound(stream, *id, name, route, cutoffs);
            let named = route.and_then(|route| route.published_entry_id.parse::<EntryId>().ok());
            if is_second(&verdict)
                && let (Some(key), Some(named)) = (key_of(name), named)
            {
                second.push((verdicts.len(), (key, named)));
            }
            verdicts.push((*id, verdict));
        }
        self.clear_only_entries(channel, &second, &mut verdicts).await?;
        Ok(verdicts)
    }

    /// Clears false duplicates. An entry that its route does not name is a duplicate only if the entry that
    /// the route names is present; if that entry is missing, the discrepancy belongs to the route. `second`
    /// contains the indexes of such verdicts, with the keys of the routes and the entries that they name.
    async fn clear_only_entries(
        &self,
        channel: Channel,
        second: &[(usize, (&RouteKey, EntryId))],
        verdicts: &mut [(EntryId, OutboundVerdict)],
    ) -> Result<(), StoreError> {
        for chunk in second.chunks(MAX_FOUND_ENTRIES) {
            let named: Vec<(&RouteKey, EntryId)> = chunk.iter().map(|(_, named)| *named).collect();
            let found = retry(async || self.stores.outbound.find_entries(channel, &named).await).await?;
            for ((place, _), state) in chunk.iter().zip(found.states) {
                if state.is_lost() {
                    verdicts[*place].1 = OutboundVerdict::Uncommitted;
                }
            }
        }
        Ok(())
    }

    /// Reads the page and its routes again, and returns the discrepancies that are found each time. Counts
    /// the verdicts of entries whose discrepancy is gone.
    async fn look_at_outbound_again(
        &mut self,
        channel: Channel,
        stream: &str,
        mut wrong: Vec<Discrepancy>,
        (after, last): (EntryId, EntryId),
    ) -> Result<Vec<Discrepancy>, StoreError> {
        for _ in 1..MAX_LOOKS {
            if wrong.is_empty() {
                break;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            let mut again = Vec::new();
            let mut read = after;
            // One read may return less than the read that first found the entries.
            while read < last {
                let page =
                    retry(async || self.stores.streams.list_entries(stream, read, last, READ_LIMIT).await)
                        .await?;
                let Some(end) = page.last().map(|last| last.id) else { break };
                let tables = &self.stores.current;
                for (id, verdict) in self.judge_outbound_page(tables, channel, stream, page).await? {
                    match verdict {
                        OutboundVerdict::Wrong(discrepancy) => again.push(discrepancy),
                        verdict if is_suspected(&wrong, id) => self.figures.outbound.add(&verdict),
                        _ => {}
                    }
                }
                read = end;
            }
            wrong = still_found(&wrong, again);
        }
        Ok(wrong)
    }
}

fn is_second(verdict: &OutboundVerdict) -> bool {
    matches!(verdict, OutboundVerdict::Wrong(found) if found.kind == DiscrepancyKind::DuplicateOutboundEntry)
}

fn key_of(name: &OutboundName) -> Option<&RouteKey> {
    match name {
        OutboundName::Route(key) => Some(key),
        OutboundName::Other => None,
    }
}
