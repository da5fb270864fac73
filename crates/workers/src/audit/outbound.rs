//! The outbound streams, entry by entry.

use ambient::Clock;
use domain::audit::{
    Discrepancy, DiscrepancyKind, OutboundName, OutboundVerdict, RouteState, judge_outbound,
};
use domain::entry::EntryId;
use domain::ports::{
    AuditStore, CheckpointCache, LeaderLookup, OutboundInspection, StoreError, StreamEntry, StreamReader,
};
use domain::route::{Channel, RouteKey};

use super::entries::before;
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
    /// Up to the last entry that there is at the beginning.
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
                let verdicts = self.judge_outbound_page(channel, &stream, page).await?;
                let mut wrong = Vec::new();
                for verdict in verdicts {
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
        channel: Channel,
        stream: &str,
        page: Vec<StreamEntry>,
    ) -> Result<Vec<OutboundVerdict>, StoreError> {
        let named = |entry: StreamEntry| (entry.id, OutboundName::of(channel, entry.fields.as_ref().ok()));
        let names: Vec<(EntryId, OutboundName)> = page.into_iter().map(named).collect();
        let keys: Vec<&RouteKey> = names.iter().filter_map(|(_, name)| key_of(name)).collect();
        let found = retry(async || self.stores.tables.find_routes(&keys).await).await?;
        let cutoffs = self.cutoffs();
        let mut routes = found.iter();
        let mut verdicts = Vec::with_capacity(names.len());
        for (id, name) in &names {
            let route = key_of(name).and_then(|_| routes.next()).and_then(Option::as_ref);
            let verdict = judge_outbound(stream, *id, name, route, cutoffs);
            verdicts.push(self.unless_only_entry(channel, name, route, verdict).await?);
        }
        Ok(verdicts)
    }

    /// An entry that its route does not name is a second one only if the one that the route names is not missing, which is a discrepancy of the
    /// route.
    async fn unless_only_entry(
        &self,
        channel: Channel,
        name: &OutboundName,
        route: Option<&RouteState>,
        verdict: OutboundVerdict,
    ) -> Result<OutboundVerdict, StoreError> {
        let is_second = matches!(&verdict, OutboundVerdict::Wrong(found)
            if found.kind == DiscrepancyKind::DuplicateOutboundEntry);
        let named = route.and_then(|route| route.published_entry_id.parse::<EntryId>().ok());
        match (key_of(name), named) {
            (Some(key), Some(named))
                if is_second && self.is_named_entry_missing(channel, key, named).await? =>
            {
                Ok(OutboundVerdict::Uncommitted)
            }
            _ => Ok(verdict),
        }
    }

    /// What is found each time that the page and its routes are read again.
    async fn look_at_outbound_again(
        &self,
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
            let page =
                retry(async || self.stores.streams.list_entries(stream, after, last, READ_LIMIT).await)
                    .await?;
            let again = self.judge_outbound_page(channel, stream, page).await?.into_iter();
            let again = again.filter_map(|verdict| match verdict {
                OutboundVerdict::Wrong(discrepancy) => Some(discrepancy),
                _ => None,
            });
            wrong = still_found(&wrong, again.collect());
        }
        Ok(wrong)
    }
}

fn key_of(name: &OutboundName) -> Option<&RouteKey> {
    match name {
        OutboundName::Route(key) => Some(key),
        OutboundName::Other => None,
    }
}
