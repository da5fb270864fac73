//! The ports in memory, for tests of the workers' own behaviour. What the real stores do is tested with them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ambient::Timestamp;
use domain::accept::Settled;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::outbound::OutboundEntry;
use domain::ports::*;
use domain::record::{Content, IdempotencyScope, NotificationId};
use domain::route::{Channel, LiveRoute, RouteKey, Version};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Gauge, InstrumentBuilder, InstrumentProvider, Meter, SyncInstrument};

/// All stores at once. Every call first takes the next scripted failure of its name, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct World(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) stream: Vec<RawEntry>,
    pub(crate) last_generated: EntryId,
    pub(crate) progress: Option<Progress>,
    pub(crate) bookmark: Option<Progress>,
    /// Every transaction finds that the progress was moved.
    pub(crate) moves: bool,
    /// Outcomes by entry, in the order of their commits.
    pub(crate) settled: Vec<(EntryId, String)>,
    /// Transactions, by the number of their elements.
    pub(crate) transactions: Vec<usize>,
    /// Entries that the store refuses to take as what they are, and those that it refuses even as malformed.
    pub(crate) poison: Vec<EntryId>,
    /// The fingerprints of the keys that are taken.
    pub(crate) keys: HashMap<IdempotencyScope, String>,
    pub(crate) users: HashMap<String, Lookup>,
    /// Calls that are never answered.
    pub(crate) hanging: Vec<&'static str>,
    /// How many entries each read asked for.
    pub(crate) counts: Vec<usize>,
    pub(crate) failures: HashMap<&'static str, VecDeque<StoreError>>,
    pub(crate) live: Vec<LiveRoute>,
    pub(crate) leases: HashMap<RouteKey, String>,
    /// Who has the turn at due routes.
    pub(crate) turn: Option<String>,
    pub(crate) appended: Vec<RouteKey>,
    pub(crate) refuses_appends: bool,
    pub(crate) out_of_memory: usize,
    /// How many leases run out just before their append.
    pub(crate) late_appends: usize,
    /// The routes whose completion the store refuses.
    pub(crate) refuses_completion: Vec<RouteKey>,
    pub(crate) published: Vec<(RouteKey, String)>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) calls: Vec<&'static str>,
}

pub(crate) fn down(operation: &'static str) -> StoreError {
    StoreError::Unavailable { operation, source: "down".into() }
}

impl World {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics while it holds the world")
    }

    pub(crate) fn fail(&self, call: &'static str, error: StoreError) {
        self.lock().failures.entry(call).or_default().push_back(error);
    }

    async fn hang(&self, name: &'static str) {
        let hangs = self.lock().hanging.contains(&name);
        if hangs {
            self.lock().calls.push(name);
            std::future::pending::<()>().await;
        }
    }

    fn call(&self, name: &'static str) -> Result<MutexGuard<'_, Inner>, StoreError> {
        let mut inner = self.lock();
        inner.calls.push(name);
        match inner.failures.get_mut(name).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(inner),
        }
    }
}

impl AcceptanceStore for World {
    async fn find_known(&self, intents: &[(IdempotencyScope, EntryId)]) -> Result<Known, StoreError> {
        let inner = self.call("find_known")?;
        let known = |(scope, _): &(IdempotencyScope, _)| {
            inner.keys.get(scope).map(|fingerprint| (scope.clone(), fingerprint.clone()))
        };
        Ok(Known { fingerprints: intents.iter().filter_map(known).collect(), ..Known::default() })
    }

    async fn accept(&self, batch: AcceptanceBatch<'_>) -> Result<Commit, StoreError> {
        // As a server would: whatever else is under way goes on meanwhile.
        tokio::task::yield_now().await;
        let mut inner = self.call("accept")?;
        if inner.moves || inner.progress.map(|progress| progress.last_entry_id) != batch.after {
            return Ok(Commit::Moved);
        }
        let ids = batch.settled.iter().map(|settled| match settled {
            Settled::Accepted(acceptance) => {
                (acceptance.record.notification_id.as_str().parse().expect("an id"), true)
            }
            Settled::Malformed(row) => (row.entry_id, false),
            Settled::Duplicate => (batch.last_entry_id, false),
        });
        let ids: Vec<(EntryId, bool)> = ids.collect();
        if ids.iter().any(|(id, accepted)| *accepted && inner.poison.contains(id)) {
            return Err(StoreError::Refused { operation: "accept", source: "not storable".into() });
        }
        let accepted = || {
            batch.settled.iter().filter_map(|settled| match settled {
                Settled::Accepted(acceptance) => Some(&acceptance.record),
                _ => None,
            })
        };
        if accepted().any(|record| inner.keys.contains_key(&record.scope)) {
            return Ok(Commit::Raced);
        }
        inner.keys.extend(accepted().map(|record| (record.scope.clone(), record.fingerprint.clone())));
        inner.transactions.push(ids.len());
        for ((id, _), settled) in ids.into_iter().zip(batch.settled) {
            let outcome = match settled {
                Settled::Malformed(row) => row.rejection.code.as_str().to_owned(),
                other => other.outcome().to_owned(),
            };
            inner.settled.push((id, outcome));
        }
        inner.progress = Some(Progress { fence: batch.fence, last_entry_id: batch.last_entry_id });
        Ok(Commit::Done)
    }

    async fn claim_progress(&self, _: &str, fence: Fence) -> Result<Claim, StoreError> {
        let mut inner = self.call("claim_progress")?;
        Ok(match &mut inner.progress {
            None => Claim::Unread,
            Some(progress) if progress.fence > fence => Claim::Deposed(progress.fence),
            Some(progress) => {
                progress.fence = fence;
                Claim::At(progress.last_entry_id)
            }
        })
    }

    async fn load_progress(&self, _: &str) -> Result<Option<Progress>, StoreError> {
        self.call("load_progress").map(|inner| inner.progress)
    }

    async fn restart_progress(&self, _: &str, fence: Fence) -> Result<Swap, StoreError> {
        self.call("restart_progress")?.progress = Some(Progress { fence, last_entry_id: EntryId::ZERO });
        Ok(Swap::Applied)
    }
}

/// There is nobody else; the term lasts.
#[derive(Debug)]
pub(crate) struct Alone;

impl Term for Alone {
    fn fence(&self) -> Fence {
        1
    }

    async fn lost(&self) {
        std::future::pending().await
    }

    async fn resign(self) {}
}

impl Election for World {
    type Term = Alone;

    async fn stand(&self) -> Result<Option<Alone>, StoreError> {
        self.call("stand").map(|_| Some(Alone))
    }

    async fn vacancy(&self) {}

    async fn raise_above(&self, _: Fence) -> Result<(), StoreError> {
        self.call("raise_above").map(drop)
    }
}

impl IntentStream for World {
    async fn read(&self, after: EntryId, count: usize, block: Duration) -> Result<Vec<RawEntry>, StoreError> {
        let entries: Vec<RawEntry> = {
            self.lock().counts.push(count);
            let inner = self.call("read")?;
            inner.stream.iter().filter(|entry| entry.id > after).take(count).cloned().collect()
        };
        if entries.is_empty() {
            tokio::time::sleep(block).await;
        }
        Ok(entries)
    }

    async fn first_after(&self, after: EntryId) -> Result<Option<EntryId>, StoreError> {
        self.call("first_after").map(|inner| inner.stream.iter().map(|entry| entry.id).find(|id| *id > after))
    }

    async fn inspect(&self) -> Result<StreamState, StoreError> {
        let inner = self.call("inspect")?;
        Ok(StreamState {
            first: inner.stream.first().map(|entry| entry.id),
            last_generated: inner.last_generated,
        })
    }
}

impl OffsetStore for World {
    async fn load(&self, _: &str) -> Result<Bookmark, StoreError> {
        self.call("load").map(|inner| inner.bookmark.map_or(Bookmark::Missing, Bookmark::At))
    }

    async fn save(&self, _: &str, progress: Progress) -> Result<Swap, StoreError> {
        self.call("save")?.bookmark = Some(progress);
        Ok(Swap::Applied)
    }

    async fn reset(&self, _: &str, progress: Progress) -> Result<Swap, StoreError> {
        self.call("reset")?.bookmark = Some(progress);
        Ok(Swap::Applied)
    }
}

impl UserDirectory for World {
    async fn look_up(&self, user_ids: &[&str]) -> Vec<Lookup> {
        self.hang("look_up").await;
        let mut inner = self.lock();
        inner.calls.push("look_up");
        let found = |id: &&str| inner.users.get(*id).cloned().unwrap_or(Lookup::Found(User::default()));
        user_ids.iter().map(found).collect()
    }
}

impl RouteStore for World {
    async fn list_due_routes(
        &self,
        channel: Channel,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        let inner = self.call("list_due_routes")?;
        let place = |route: &LiveRoute| (route.next_attempt_at, route.key.clone());
        let mut due: Vec<LiveRoute> = inner.live.clone();
        due.retain(|route| route.channel == channel && route.next_attempt_at <= now);
        due.retain(|route| after.is_none_or(|at| place(route) > (at.next_attempt_at, at.key.clone())));
        due.sort_by_key(place);
        due.truncate(limit);
        let next = due
            .last()
            .filter(|_| due.len() == limit)
            .map(|last| DueCursor { next_attempt_at: last.next_attempt_at, key: last.key.clone() });
        Ok(DuePage { routes: due, next, ..DuePage::default() })
    }

    async fn next_due(&self) -> Result<HashMap<Channel, Timestamp>, StoreError> {
        let inner = self.call("next_due")?;
        let mut next = HashMap::new();
        for route in &inner.live {
            let first = next.entry(route.channel).or_insert(route.next_attempt_at);
            *first = route.next_attempt_at.min(*first);
        }
        Ok(next)
    }

    async fn count_due_routes(&self, now: Timestamp, _: usize) -> Result<u64, StoreError> {
        let inner = self.call("count_due_routes")?;
        Ok(inner.live.iter().filter(|route| route.next_attempt_at <= now).count() as u64)
    }

    async fn get_live_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let inner = self.call("get_live_routes")?;
        let routes = inner.live.iter().filter(|route| keys.contains(&&route.key)).cloned().collect();
        Ok(DuePage { routes, ..DuePage::default() })
    }

    async fn complete_routes_published(
        &self,
        routes: &[Published<'_>],
        _: Timestamp,
    ) -> Result<Vec<Swap>, StoreError> {
        let mut inner = self.call("complete_routes_published")?;
        if routes.iter().any(|done| inner.refuses_completion.contains(done.key)) {
            return Err(StoreError::Refused { operation: "complete", source: "not storable".into() });
        }
        let swaps = routes.iter().map(|done| {
            let before = inner.live.len();
            let unchanged = |route: &LiveRoute| route.key == *done.key && route.version == done.version;
            inner.live.retain(|route| !unchanged(route));
            inner.published.push((done.key.clone(), done.entry_id.clone()));
            if inner.live.len() < before { Swap::Applied } else { Swap::Conflict }
        });
        Ok(swaps.collect())
    }

    async fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
    ) -> Result<Vec<Swap>, StoreError> {
        let mut inner = self.call("complete_routes_failed")?;
        for failed in routes {
            inner.failed.push(failed.clone());
            match failed.retry_at {
                None => inner.live.retain(|route| route.key != failed.key),
                Some(at) => {
                    for route in inner.live.iter_mut().filter(|route| route.key == failed.key) {
                        (route.attempt_count, route.next_attempt_at, route.version) =
                            (failed.attempt_count, at, Version::read(now));
                    }
                }
            }
        }
        Ok(vec![Swap::Applied; routes.len()])
    }
}

impl LeaseStore for World {
    async fn acquire_leases(
        &self,
        keys: &[&RouteKey],
        token: &LeaseToken,
        _: Duration,
    ) -> Result<Vec<Lease>, StoreError> {
        self.hang("acquire_leases").await;
        let mut inner = self.call("acquire_leases")?;
        let leases = keys.iter().map(|key| match inner.leases.get(*key) {
            Some(value) if *value == token.0 => Lease::Won,
            Some(value) => {
                value.strip_prefix("published:").map_or(Lease::Held, |id| Lease::Published(id.to_owned()))
            }
            None => {
                inner.leases.insert((*key).clone(), token.0.clone());
                Lease::Won
            }
        });
        Ok(leases.collect())
    }

    async fn release_leases(&self, keys: &[&RouteKey], token: &LeaseToken) -> Result<(), StoreError> {
        self.call("release_leases")?.leases.retain(|key, value| !keys.contains(&key) || *value != token.0);
        Ok(())
    }

    async fn take_turn(&self, _: Channel, token: &LeaseToken, _: Duration) -> Result<bool, StoreError> {
        let mut inner = self.call("take_turn")?;
        Ok(*inner.turn.get_or_insert_with(|| token.0.clone()) == token.0)
    }

    async fn end_turn(&self, _: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        self.call("end_turn")?.turn.take_if(|holder| *holder == token.0);
        Ok(())
    }

    async fn extend_receipts(&self, receipts: &[(&RouteKey, &str)], _: Duration) -> Result<(), StoreError> {
        let mut inner = self.call("extend_receipts")?;
        let receipt = |&(key, id): &(&RouteKey, &str)| (key.clone(), format!("published:{id}"));
        inner.leases.extend(receipts.iter().map(receipt));
        Ok(())
    }
}

impl Outbound for World {
    async fn append(
        &self,
        _: Channel,
        entries: &[(&RouteKey, &OutboundEntry<'_>)],
        token: &LeaseToken,
        _: Duration,
    ) -> Result<Vec<Append>, StoreError> {
        let mut inner = self.call("append")?;
        let appends = entries.iter().map(|&(key, _)| {
            if inner.late_appends > 0 {
                inner.late_appends -= 1;
                inner.leases.remove(key);
            }
            match inner.leases.get(key).cloned() {
                Some(value) if value == token.0 => {}
                Some(value) if value.starts_with("published:") => {
                    return Append::Done(value["published:".len()..].to_owned());
                }
                _ => return Append::LeaseLost,
            }
            if inner.out_of_memory > 0 {
                inner.out_of_memory -= 1;
                return Append::Outage("OOM".into());
            }
            if inner.refuses_appends {
                return Append::Refused("WRONGTYPE".into());
            }
            inner.appended.push(key.clone());
            let id = format!("{}-0", inner.appended.len());
            inner.leases.insert(key.clone(), format!("published:{id}"));
            Append::Done(id)
        });
        Ok(appends.collect())
    }
}

/// What gauges were set to, by name, in the order in which that happened.
#[derive(Clone, Default)]
pub(crate) struct Recorded(Arc<Mutex<Vec<(String, u64)>>>);

impl Recorded {
    pub(crate) fn meter(&self) -> Meter {
        Meter::new(Arc::new(self.clone()))
    }

    pub(crate) fn values(&self, name: &str) -> Vec<u64> {
        let recorded = self.0.lock().expect("no test panics while it holds the values");
        recorded.iter().filter(|(gauge, _)| gauge == name).map(|(_, value)| *value).collect()
    }
}

impl InstrumentProvider for Recorded {
    fn u64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<u64>>) -> Gauge<u64> {
        Gauge::new(Arc::new(RecordedGauge(builder.name.into_owned(), self.clone())))
    }
}

struct RecordedGauge(String, Recorded);

impl SyncInstrument<u64> for RecordedGauge {
    fn measure(&self, value: u64, _: &[KeyValue]) {
        let Self(name, Recorded(values)) = self;
        values.lock().expect("no test panics while it holds the values").push((name.clone(), value));
    }
}

/// A well-formed intent for one user.
pub(crate) fn intent(number: u64, key: &str, user: &str) -> RawEntry {
    let fields = RawFields::from_iter([
        ("notification_type", "game.turn.ready"),
        ("producer", "game_master"),
        ("audience_kind", "user"),
        ("recipient_user_ids_json", &format!("[{user:?}]")),
        ("idempotency_key", key),
        ("occurred_at_ms", "1775121700000"),
        ("payload_json", r#"{"game_id":"g","game_name":"n","turn_number":54}"#),
    ]);
    RawEntry { id: EntryId::new(number, 0), fields }
}

/// A push route that is due at the epoch.
pub(crate) fn route(number: u64, attempt_count: u32) -> LiveRoute {
    let at = Timestamp::UNIX_EPOCH;
    LiveRoute {
        key: RouteKey {
            notification_id: NotificationId::of(EntryId::new(number, 0), 0),
            route_id: "push:user:u-1".into(),
        },
        version: Version::read(at),
        channel: Channel::Push,
        recipient_ref: "user:u-1".into(),
        resolved_email: String::new(),
        resolved_locale: "en".into(),
        attempt_count,
        max_attempts: 3,
        next_attempt_at: at,
        content: Arc::new(Content {
            notification_type: "game.turn.ready".into(),
            payload_json: "{}".into(),
            occurred_at: at,
            accepted_at: at,
            request_id: String::new(),
            trace_id: String::new(),
        }),
    }
}
