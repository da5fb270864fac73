//! The ports in memory, for tests of the workers' own behaviour. What the real stores do is tested with them.

mod intake;

pub(crate) use intake::Alone;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ambient::Timestamp;
use domain::entry::{EntryId, RawEntry, RawFields};
use domain::outbound::OutboundEntry;
use domain::ports::*;
use domain::record::{Content, NotificationId};
use domain::route::{Channel, LiveRoute, RouteKey, Version};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Gauge, InstrumentBuilder, InstrumentProvider, Meter, SyncInstrument};
use tokio::sync::Notify;
use tokio::time::timeout;

/// All stores at once. Every call first takes the next scripted failure of its name, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct World(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// What only the intake sees.
    pub(crate) intake: intake::State,
    /// Calls that are never answered.
    pub(crate) hanging: Vec<&'static str>,
    pub(crate) failures: HashMap<&'static str, VecDeque<StoreError>>,
    pub(crate) live: Vec<LiveRoute>,
    pub(crate) leases: HashMap<RouteKey, String>,
    /// Who holds the scan lock.
    pub(crate) scan_lock: Option<String>,
    pub(crate) appended: Vec<RouteKey>,
    pub(crate) refuses_appends: bool,
    pub(crate) out_of_memory: usize,
    /// How many leases run out just before their append.
    pub(crate) late_appends: usize,
    /// The routes whose completion the store refuses.
    pub(crate) refuses_completion: Vec<RouteKey>,
    /// The routes whose rows another transaction has locked.
    pub(crate) locked: Vec<RouteKey>,
    /// Statements that complete more routes than this take too long.
    pub(crate) completes_at_most: Option<usize>,
    /// Statements that read more routes than this take too long.
    pub(crate) reads_at_most: Option<usize>,
    /// How many routes each statement was to complete.
    pub(crate) completions: Vec<usize>,
    /// Due rows that cannot be read.
    pub(crate) unreadable: Vec<RouteKey>,
    /// What the store says of the first due push route, if not what it holds.
    pub(crate) first_due: Option<Timestamp>,
    /// How long each append takes.
    pub(crate) append_takes: Duration,
    pub(crate) published: Vec<(RouteKey, String)>,
    pub(crate) failed: Vec<Failed>,
    pub(crate) calls: Vec<&'static str>,
    /// Notified by each call.
    pub(crate) called: Arc<Notify>,
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

    /// Waits until `done`, which is asked after each call once its caller waits for something else. Panics after `bound`.
    pub(crate) async fn until(&self, bound: Duration, done: impl Fn() -> bool) {
        let called = Arc::clone(&self.lock().called);
        let waiting = async {
            loop {
                let next = called.notified();
                if done() {
                    return;
                }
                next.await;
            }
        };
        timeout(bound, waiting).await.expect("it gets there");
    }

    async fn hang(&self, name: &'static str) {
        let hangs = self.lock().hanging.contains(&name);
        if hangs {
            self.lock().record(name);
            std::future::pending::<()>().await;
        }
    }

    fn call(&self, name: &'static str) -> Result<MutexGuard<'_, Inner>, StoreError> {
        let mut inner = self.lock();
        inner.record(name);
        match inner.failures.get_mut(name).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(inner),
        }
    }
}

impl RouteStore for World {
    async fn list_due_routes(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        let inner = self.call("list_due_routes")?;
        inner.read(limit)?;
        let place = |route: &LiveRoute| (route.next_attempt_at, route.key.clone());
        let mut due: Vec<LiveRoute> = inner.live.clone();
        due.retain(|route| route.channel == channel && route.next_attempt_at <= now);
        due.sort_by_key(place);
        if order == DueOrder::NewestFirst {
            due.reverse();
        }
        if let Some(after) = after {
            let passed = |route: &LiveRoute| {
                let at = (route.next_attempt_at.to_string(), &route.key);
                let cursor = (after.next_attempt_at.clone(), &after.key);
                if order == DueOrder::OldestFirst { at > cursor } else { at < cursor }
            };
            due.retain(passed);
        }
        due.truncate(limit);
        let next = due.last().filter(|_| due.len() == limit).map(|last| DueCursor {
            next_attempt_at: last.next_attempt_at.to_string(),
            key: last.key.clone(),
        });
        let corrupt =
            if after.is_none() { inner.unreadable.iter().map(unreadable).collect() } else { Vec::new() };
        Ok(DuePage { routes: due, next, corrupt })
    }

    async fn next_due(&self) -> Result<HashMap<Channel, Timestamp>, StoreError> {
        let inner = self.call("next_due")?;
        let mut next = HashMap::new();
        for route in &inner.live {
            let first = next.entry(route.channel).or_insert(route.next_attempt_at);
            *first = route.next_attempt_at.min(*first);
        }
        next.extend(inner.first_due.map(|first| (Channel::Push, first)));
        Ok(next)
    }

    async fn count_due_routes(&self, now: Timestamp, _: usize) -> Result<u64, StoreError> {
        let inner = self.call("count_due_routes")?;
        Ok(inner.live.iter().filter(|route| route.next_attempt_at <= now).count() as u64)
    }

    async fn get_live_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        let inner = self.call("get_live_routes")?;
        inner.read(keys.len())?;
        let routes = inner.live.iter().filter(|route| keys.contains(&&route.key)).cloned().collect();
        Ok(DuePage { routes, ..DuePage::default() })
    }

    async fn complete_routes_published(
        &self,
        routes: &[Published],
        _: Timestamp,
        _: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        let mut inner = self.call("complete_routes_published")?;
        inner.completed(routes.iter().map(|done| &done.key))?;
        let completions = routes.iter().map(|done| {
            if inner.locked.contains(&done.key) {
                return Completion::Locked;
            }
            let before = inner.live.len();
            let unchanged = |route: &LiveRoute| route.key == done.key && route.version == done.version;
            inner.live.retain(|route| !unchanged(route));
            inner.published.push((done.key.clone(), done.entry_id.clone()));
            if inner.live.len() < before { Completion::Applied } else { Completion::Conflict }
        });
        Ok(completions.collect())
    }

    async fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        _: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        let mut inner = self.call("complete_routes_failed")?;
        inner.completed(routes.iter().map(|done| &done.key))?;
        let completions = routes.iter().map(|failed| {
            if inner.locked.contains(&failed.key) {
                return Completion::Locked;
            }
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
            Completion::Applied
        });
        Ok(completions.collect())
    }
}

impl Inner {
    fn record(&mut self, call: &'static str) {
        self.calls.push(call);
        self.called.notify_waiters();
    }

    /// What reading so many routes at once comes to.
    fn read(&self, routes: usize) -> Result<(), StoreError> {
        match self.reads_at_most {
            Some(most) if routes > most => {
                Err(StoreError::TimedOut { operation: "read", source: "too slow".into() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What a completion of all these at once comes to.
    fn completed<'a>(&mut self, keys: impl Iterator<Item = &'a RouteKey> + Clone) -> Result<(), StoreError> {
        if keys.clone().any(|key| self.refuses_completion.contains(key)) {
            return Err(StoreError::Refused { operation: "complete", source: "not storable".into() });
        }
        let size = keys.count();
        self.completions.push(size);
        if self.completes_at_most.is_some_and(|most| size > most) {
            return Err(StoreError::TimedOut { operation: "complete", source: "too slow".into() });
        }
        Ok(())
    }
}

fn unreadable(key: &RouteKey) -> StoreError {
    StoreError::Corrupt { place: "routes.updated_at", key: key.to_string(), problem: "out of range".into() }
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

    async fn acquire_scan_lock(
        &self,
        _: Channel,
        token: &LeaseToken,
        _: Duration,
    ) -> Result<bool, StoreError> {
        let mut inner = self.call("acquire_scan_lock")?;
        Ok(*inner.scan_lock.get_or_insert_with(|| token.0.clone()) == token.0)
    }

    async fn release_scan_lock(&self, _: Channel, token: &LeaseToken) -> Result<(), StoreError> {
        self.call("release_scan_lock")?.scan_lock.take_if(|holder| *holder == token.0);
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
        let takes = self.lock().append_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
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
pub(crate) struct Recorded(Arc<Mutex<Vec<(String, f64)>>>);

impl Recorded {
    pub(crate) fn meter(&self) -> Meter {
        Meter::new(Arc::new(self.clone()))
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        let recorded = self.0.lock().expect("no test panics while it holds the values");
        recorded.iter().filter(|(gauge, _)| gauge == name).map(|(_, value)| *value).collect()
    }
}

impl InstrumentProvider for Recorded {
    fn u64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<u64>>) -> Gauge<u64> {
        Gauge::new(Arc::new(RecordedGauge(builder.name.into_owned(), self.clone())))
    }

    fn f64_gauge(&self, builder: InstrumentBuilder<'_, Gauge<f64>>) -> Gauge<f64> {
        Gauge::new(Arc::new(RecordedGauge(builder.name.into_owned(), self.clone())))
    }
}

struct RecordedGauge(String, Recorded);

impl RecordedGauge {
    fn set(&self, value: f64) {
        let Self(name, Recorded(values)) = self;
        values.lock().expect("no test panics while it holds the values").push((name.clone(), value));
    }
}

impl SyncInstrument<u64> for RecordedGauge {
    fn measure(&self, value: u64, _: &[KeyValue]) {
        self.set(value as f64);
    }
}

impl SyncInstrument<f64> for RecordedGauge {
    fn measure(&self, value: f64, _: &[KeyValue]) {
        self.set(value);
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
