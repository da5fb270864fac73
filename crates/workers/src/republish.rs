//! Appends entries again that Redis acknowledged and then lost (ADR 0021, ADR 0045).
//!
//! Every replica observes the server and the last ids of the outbound streams. If the server changed, a last
//! id fell or a stream was recreated, one replica compares the published routes in PostgreSQL with the
//! entries of the streams. It appends missing entries again under the same `event_id` or `delivery_id`, with
//! the same attempt. A comparison begins when both stores have responded for [`SETTLE_TIME`], and is repeated
//! once, [`REPEAT_DELAY`] after it, when completions that were in progress are committed. The last
//! observation of the streams is stored in PostgreSQL. It is replaced only after a complete comparison,
//! together with the repetition to be done, so that neither a restart nor a crash skips one:
//!
//! | crash after | what is left | what happens next |
//! |---|---|---|
//! | detecting the change | nothing | The next observation of any replica detects it. |
//! | appending | the entry and its marker | The next comparison finds the marker and updates the route. |
//! | updating routes | their new ids | The next comparison finds these entries in the stream. |
//! | a page | its entries | The next comparison begins with the newest record and finds these entries. |
//! | the comparison | the observation from before | The next comparison finds nothing missing. |
//! | saving the observation | that the comparison is to be repeated | Any replica repeats it. |
//!
//! No bound depends on the clock of a replica: times are those of PostgreSQL, and the records are read from
//! the newest one on. If a marker expires before the next comparison, the entry is appended twice, with the
//! same `event_id` or `delivery_id`.

mod compare;
mod losses;
mod names;
mod tally;
mod watch;

use std::time::Duration;

use ambient::{Clock, Timestamp};
use domain::entry::EntryId;
use domain::ports::{
    Election, ObservedStream, OutboundInspection, RepublishStore, SavedStream, StoreError, error_chain,
};
use domain::republish::{Gap, SeenStream};
use domain::route::Channel;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::names::report_renamed;
use self::watch::{Fallen, Watch, saved_stream};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::passes::{CurrentTerm, Pass, Passes, run_passes, while_leading};

/// The interval of observations of the outbound streams.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(2);
/// The time for which both stores must have responded before a comparison begins. Completions that were in
/// progress are committed by then.
// MODEL-26
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// The time from a comparison to its repetition.
// MODEL-27
const REPEAT_DELAY: Duration = Duration::from_secs(60);
/// The additional delay before a replica repeats the comparison of another one. That one repeats it first,
/// because it has the record of the losses that it reported.
const TAKEOVER_DELAY: Duration = Duration::from_secs(30);
/// The shortest time between two writes of the observation.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// The interval at which a replica records the names of the streams that it publishes to.
const TOUCH_INTERVAL: Duration = Duration::from_secs(60);

/// The configuration of republishing.
#[derive(Clone, Copy, Debug)]
pub struct RepublishSettings {
    /// The time before the last observation of the streams in which a compared route may have been published.
    pub window: Duration,
    /// The TTL of a marker, if that is longer than the window.
    pub dedupe_ttl: Duration,
}

/// The worker that observes the outbound streams and compares them with PostgreSQL.
#[derive(Debug)]
pub struct Republisher<E, S, O, C> {
    /// The election of the replica that compares.
    pub election: E,
    /// The store of published routes.
    pub store: S,
    /// The outbound streams.
    pub outbound: O,
    /// The clock.
    pub clock: C,
    /// The configuration.
    pub settings: RepublishSettings,
    /// The instruments.
    pub metrics: Metrics,
    /// The health of the worker.
    pub health: Health,
}

/// The current observation of a stream, and the ids that it never had.
#[derive(Clone)]
struct Observed {
    channel: Channel,
    seen: SeenStream,
    gaps: Vec<Gap>,
}

impl From<ObservedStream> for Observed {
    fn from(ObservedStream { channel, stream, server, state }: ObservedStream) -> Self {
        let (last_generated, gaps) =
            state.map_or((EntryId::ZERO, Vec::new()), |state| (state.last_generated, state.gaps));
        Self { channel, seen: SeenStream { stream, server, last_generated }, gaps }
    }
}

impl Observed {
    fn may_have_lost(&self, former: &SeenStream) -> bool {
        self.seen.may_have_lost(former, &self.gaps)
    }
}

/// A stream to compare.
#[derive(Clone)]
struct Suspect {
    now: Observed,
    /// The stream before the change; `None` if a comparison is repeated.
    former: Option<SeenStream>,
    /// The start of the compared period, by PostgreSQL's clock: entries that were published from shortly
    /// before this time on.
    since: Timestamp,
}

impl<E, S, O, C> Republisher<E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    /// Runs until `stop`, with an observation every two seconds.
    pub async fn run(self, stop: CancellationToken) {
        let passes = RepublishLoop { republisher: &self, watch: Watch::default() };
        run_passes(&self.health, &stop, OBSERVE_INTERVAL, passes).await;
    }

    /// Observes once, and compares or saves if necessary. If a stream could not be observed, the others are,
    /// and its error is returned. In a Cluster each stream may be on another node.
    async fn run_once(
        &self,
        watch: &mut Watch,
        stop: &CancellationToken,
    ) -> Result<Option<StoreError>, StoreError> {
        let (mut seen, mut failure) = (Vec::new(), None);
        for channel in Channel::ALL {
            match self.outbound.observe(channel).await {
                Ok(stream) => seen.push(Observed::from(stream)),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if seen.is_empty() => return Err(error),
            _ => self.run_on(&seen, watch, stop).await?,
        }
        Ok(failure)
    }

    /// Compares or saves these streams if necessary.
    async fn run_on(
        &self,
        seen: &[Observed],
        watch: &mut Watch,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        watch.forget_unseen(seen);
        let new: Vec<Observed> = seen.iter().filter(|now| !watch.has_loaded(now)).cloned().collect();
        if !new.is_empty() {
            let saved = self.load(&new).await?;
            watch.add_loaded(&new, saved);
        }
        self.touch_names(seen, watch).await?;
        let lost =
            |now: &Observed| find(&watch.known, &now.seen).filter(|known| now.may_have_lost(known)).cloned();
        let suspected: Vec<SeenStream> = seen.iter().filter_map(lost).collect();
        let has_fallen = watch.change.as_ref().is_some_and(|change| !change.fallen.is_empty());
        if !suspected.is_empty() {
            // The comparison of this change has a repetition of its own.
            watch.repeat_at = None;
        }
        if !suspected.is_empty() || has_fallen {
            // PostgreSQL must also have responded since the change.
            let saved = self.load(seen).await?;
            return match watch.is_settled(seen, suspected, &saved) {
                true => self.reconcile_if_elected(watch, seen, stop).await,
                false => Ok(()),
            };
        }
        watch.change = None;
        watch.note_known(seen);
        let is_saved = |now: &SeenStream| watch.saved.iter().any(|saved| saved.seen == *now);
        let is_early = watch.saved_at.is_some_and(|at| at.elapsed() < SAVE_INTERVAL);
        let is_unchanged = is_early || seen.iter().all(|now| is_saved(&now.seen));
        if is_unchanged && watch.repeat_at.is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        self.reconcile_if_elected(watch, seen, stop).await
    }

    async fn load(&self, seen: &[Observed]) -> Result<Vec<SavedStream>, StoreError> {
        let streams: Vec<&str> = seen.iter().map(|now| now.seen.stream.as_str()).collect();
        self.store.load_outbound_streams(&streams).await
    }

    /// Records the names of the streams that this replica publishes to.
    async fn touch_names(&self, seen: &[Observed], watch: &mut Watch) -> Result<(), StoreError> {
        if watch.touched_at.is_some_and(|at| at.elapsed() < TOUCH_INTERVAL) {
            return Ok(());
        }
        let names: Vec<(Channel, &str)> =
            seen.iter().map(|now| (now.channel, now.seen.stream.as_str())).collect();
        self.store.touch_outbound_names(&names).await?;
        watch.touched_at = Some(Instant::now());
        Ok(())
    }

    /// Saves the streams only under leadership, so that no replica saves them while another compares.
    // MODEL-31
    async fn reconcile_if_elected(
        &self,
        watch: &mut Watch,
        seen: &[Observed],
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let reconcile =
            |leadership: CurrentTerm| async move { self.reconcile(watch, seen, &leadership.over).await };
        while_leading(&self.election, &self.health, stop, reconcile).await?.transpose().map(drop)
    }

    /// Compares the streams that may have lost entries, and then saves the streams as they were observed
    /// before that.
    async fn reconcile(
        &self,
        watch: &mut Watch,
        seen: &[Observed],
        over: &CancellationToken,
    ) -> Result<(), StoreError> {
        let saved = self.load(seen).await?;
        let repeats = watch.repeat_at.is_some_and(|at| Instant::now() >= at);
        let fallen = watch.change.as_ref().map(|change| &change.fallen[..]).unwrap_or_default();
        let suspects: Vec<Suspect> =
            seen.iter().filter_map(|now| suspect(now, &saved, fallen, repeats)).collect();
        if let Some(change) = &mut watch.change {
            change.failure = None;
        }
        let Watch { unfinished, losses, .. } = watch;
        let (comparable, renamed) = self.divide_by_names(&suspects).await?;
        if !comparable.is_empty() && !self.compare(comparable, unfinished, losses, over).await? {
            // The cause of the delay may last longer than a pass.
            match &mut watch.change {
                Some(change) => change.settled_since = Instant::now(),
                None => watch.repeat_at = Some(Instant::now() + REPEAT_DELAY),
            }
            return Ok(());
        }
        // The next leader may be comparing already.
        if over.is_cancelled() {
            return Ok(());
        }
        let renamed_meanwhile = self.renamed_during_a_change(seen, &saved).await?;
        let is_renamed = |now: &SeenStream| renamed.iter().any(|renamed| renamed.stream == now.stream);
        let again = |now: &SeenStream| {
            let suspect = suspects.iter().find(|suspect| suspect.now.seen.stream == now.stream);
            match suspect {
                // A repetition would find the same names.
                Some(suspect) => (suspect.former.is_some() && !is_renamed(now)).then_some(suspect.since),
                None => saved.iter().find(|saved| saved.seen.stream == now.stream)?.compare_again_since,
            }
        };
        let saves: Vec<(SeenStream, Option<Timestamp>)> =
            seen.iter().map(|now| (now.seen.clone(), again(&now.seen))).collect();
        // Reported first: after a crash in between it is reported again.
        renamed.iter().chain(&renamed_meanwhile).for_each(report_renamed);
        // MODEL-28
        self.store.save_outbound_streams(&saves).await?;
        watch.note_known(seen);
        watch.note_compared(seen);
        let saved = self.load(seen).await?;
        let delay = match suspects.is_empty() {
            true => REPEAT_DELAY + TAKEOVER_DELAY,
            false => {
                watch.repeat_at = None;
                REPEAT_DELAY
            }
        };
        watch.note_repeat(&saved, delay);
        watch.note_saved(saved);
        watch.saved_at = Some(Instant::now());
        Ok(())
    }
}

/// Returns the stream if it may have lost entries since it was observed, or if its comparison `repeats`.
fn suspect(now: &Observed, saved: &[SavedStream], fallen: &[Fallen], repeats: bool) -> Option<Suspect> {
    let saved = saved_stream(saved, &now.seen);
    let repeated_since = saved.and_then(|saved| saved.compare_again_since);
    // Entries of the servers before the saved one have already been compared.
    let changed = saved.map(|saved| &saved.seen).filter(|saved| now.may_have_lost(saved));
    // If the stream was saved after that, another replica has compared it.
    let is_compared = |fallen: &Fallen| fallen.saved_at < saved.map(|saved| saved.seen_at);
    let fallen = fallen.iter().find(|fallen| fallen.seen.stream == now.seen.stream && !is_compared(fallen));
    let former = changed.or(fallen.map(|fallen| &fallen.seen)).cloned();
    if former.is_none() && !(repeats && repeated_since.is_some()) {
        return None;
    }
    let seen_at = saved.map(|saved| saved.seen_at).filter(|_| former.is_some());
    // A stream that was never saved was observed by this process alone, within the save interval.
    let since = [seen_at, repeated_since].into_iter().flatten().min().unwrap_or(Timestamp::MIN);
    Some(Suspect { now: now.clone(), former, since })
}

/// The passes of [`Republisher::run`].
struct RepublishLoop<'a, E, S, O, C> {
    republisher: &'a Republisher<E, S, O, C>,
    watch: Watch,
}

impl<E, S, O, C> Passes for RepublishLoop<'_, E, S, O, C>
where
    E: Election,
    S: RepublishStore,
    O: OutboundInspection,
    C: Clock,
{
    async fn run_once(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let (republisher, watch) = (self.republisher, &mut self.watch);
        match republisher.run_once(watch, stop).await {
            Err(error) => {
                // Publishers met the same failure, so their completions need the settle time again.
                if let Some(change) = &mut watch.change {
                    (change.settled_since, change.failure) = (Instant::now(), Some(error_chain(&error)));
                }
                Err(error)
            }
            // A successful observation does not show that the comparison would succeed.
            Ok(unobserved) => {
                let cause = watch.change.as_ref().and_then(|change| change.failure.clone());
                Ok(match cause.or_else(|| unobserved.map(|error| error_chain(&error))) {
                    Some(cause) => Pass::Blocked(cause),
                    None => Pass::PauseFor(OBSERVE_INTERVAL),
                })
            }
        }
    }
}

fn find<'a>(streams: &'a [SeenStream], like: &SeenStream) -> Option<&'a SeenStream> {
    streams.iter().find(|seen| seen.stream == like.stream)
}

#[cfg(test)]
mod tests;
