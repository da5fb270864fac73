//! Runs a history on a storage, with the model beside it.

use super::*;

/// A claim that a relay holds.
#[derive(Clone)]
struct Held {
    token: ClaimToken,
    claimed_at: Timestamp,
    claim: ClaimedRows,
}

pub(super) struct Run<'a, W> {
    world: &'a W,
    model: Model,
    /// The written, uncommitted events: number, key, beginning of the transaction, delay until due.
    open: Vec<(u64, &'static str, Timestamp, Duration)>,
    rolled_back: Vec<Uuid>,
    relays: [Vec<Held>; RELAYS],
    written: u64,
}

impl<'a, W: World> Run<'a, W> {
    pub(super) fn new(world: &'a W) -> Self {
        Self {
            world,
            model: Model::default(),
            open: Vec::new(),
            rolled_back: Vec::new(),
            relays: Default::default(),
            written: 0,
        }
    }

    async fn step(&mut self, op: &Op) {
        let now = self.world.now().await;
        match *op {
            Op::Begin { key, delay } => {
                self.written += 1;
                // A permutation of the numbers, so that the order of ids differs from that of time.
                self.open.push((self.written * 7_919 % 10_007, KEYS[key], now, delay));
            }
            Op::End { which, commits } => self.end(which, commits).await,
            Op::Pass { time } => self.world.pass(time).await,
            Op::Claim { relay, limit, further } => self.claim(relay, limit, further).await,
            Op::Race { limit } => self.race(limit).await,
            Op::Finish { relay, back, fails } => self.finish(relay, back, fails).await,
            Op::Release { relay, back } => {
                if let Some(held) = self.held(relay, back) {
                    let events: Vec<Uuid> = held.claim.events.iter().map(|event| event.event_id).collect();
                    let expected: Vec<Marked> =
                        events.iter().map(|event| self.model.mark(&held.token, *event, |_| {})).collect();
                    assert_eq!(self.world.release(&held.token, &events).await, expected);
                }
            }
            Op::Crash { relay } => self.relays[relay].clear(),
            Op::Reap => self.reap().await,
        }
    }

    async fn reap(&mut self) {
        let expected = self.model.reap(self.world.now().await);
        let request =
            ReapRequest { types: EventTypes::All, lease_timeout: LEASE, limit: 1_000, except: Vec::new() };
        let reaped = self.world.storage().reap_expired_leases(&request, &kind_of).await;
        assert_eq!(reaped.expect("no failure").count, expected);
    }

    async fn end(&mut self, which: usize, commits: bool) {
        if which >= self.open.len() {
            return;
        }
        let (number, key, created_at, delay) = self.open.remove(which);
        if !commits {
            self.rolled_back.push(id(number));
            return;
        }
        let available_at = created_at + delay;
        let new = NewEvent { available_at: Some(available_at), ..event(number, key) };
        self.world.insert(new, created_at).await;
        let entry = Entry {
            key,
            created_at,
            available_at,
            status: Status::Pending,
            holder: None,
            attempts: 0,
            reaped: false,
            published: 0,
        };
        assert!(self.model.entries.insert(id(number), entry).is_none(), "ids are unique");
    }

    fn held(&self, relay: usize, back: usize) -> Option<Held> {
        self.relays[relay].iter().rev().nth(back).cloned()
    }

    async fn claim(&mut self, relay: usize, limit: u32, further: bool) {
        let mut request = request(limit);
        request.after = self.relays[relay].last().filter(|_| further).and_then(|held| held.claim.next);
        let now = self.world.now().await;
        let claim = self.world.claim_with(&request).await;
        let claimable = self.model.entries.keys().filter(|event| self.model.is_claimable(event, now)).count();
        let all = self.model.entries.len() < limit as usize;
        assert!(
            claimable == 0 || !all || request.after.is_some() || !claim.events.is_empty(),
            "{claimable} wait"
        );
        self.model.claim(&request.token, &claim, now).unwrap_or_else(|broken| panic!("{broken}: {claim:?}"));
        self.relays[relay].push(Held { token: request.token, claimed_at: now, claim });
    }

    async fn race(&mut self, limit: u32) {
        let requests = [request(limit), request(limit), request(limit)];
        let [a, b, c] = &requests;
        let now = self.world.now().await;
        let world = self.world;
        let (a, b, c) = tokio::join!(world.claim_with(a), world.claim_with(b), world.claim_with(c));
        let claims = [a, b, c];
        // The claims may have taken place in any order; in one of them the model must allow each after those
        // before it.
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let allowed = orders.iter().find_map(|order| {
            let mut model = self.model.clone();
            let each = order.iter().try_for_each(|of| model.claim(&requests[*of].token, &claims[*of], now));
            each.ok().map(|()| model)
        });
        self.model = allowed.unwrap_or_else(|| panic!("no order allows {claims:?}"));
        for (relay, (request, claim)) in requests.into_iter().zip(claims).enumerate() {
            self.relays[relay].push(Held { token: request.token, claimed_at: now, claim });
        }
    }

    /// Publishes like a relay: in order, not after the deadline, and no event of a key after one that failed.
    async fn finish(&mut self, relay: usize, back: usize, fails: Option<(usize, bool)>) {
        let Some(held) = self.held(relay, back) else { return };
        let now = self.world.now().await;
        if now > held.claimed_at + LEASE {
            // After the deadline the publisher refuses, so there is nothing to mark except earlier
            // publications. A zombie tries to mark nevertheless.
            let events: Vec<Uuid> = held.claim.events.iter().map(|event| event.event_id).collect();
            let expected: Vec<Marked> = events
                .iter()
                .map(|event| self.model.mark(&held.token, *event, |entry| entry.status = Status::Done))
                .collect();
            for (event, marked) in events.iter().zip(&expected) {
                let entry = self.model.entries.get_mut(event).expect("it was claimed");
                entry.published += u32::from(*marked == Marked::Applied);
            }
            assert_eq!(self.world.deliver(&held.token, &events).await, expected);
            return;
        }
        let (mut done, mut failures, mut released) = (Vec::new(), Vec::new(), Vec::new());
        let mut blocked = "";
        for (place, event) in held.claim.events.iter().enumerate() {
            if !blocked.is_empty() && event.partition_key == blocked {
                released.push(event.event_id);
            } else if let Some((_, rejected)) = fails.filter(|(at, _)| *at == place) {
                let attempts = event.attempts + 1;
                let kind = if rejected { FailureKind::Dead } else { kind_of(attempts) };
                failures.push(FailedEvent {
                    event_id: event.event_id,
                    attempts,
                    error: "no".to_owned(),
                    kind,
                });
                blocked = &event.partition_key;
            } else {
                self.model.entries.get_mut(&event.event_id).expect("it was claimed").published += 1;
                done.push(event.event_id);
            }
        }
        let token = &held.token;
        let model = &mut self.model;
        let expected: Vec<Marked> =
            done.iter().map(|event| model.mark(token, *event, |entry| entry.status = Status::Done)).collect();
        assert_eq!(self.world.deliver(token, &done).await, expected);
        let expected: Vec<Marked> = failures
            .iter()
            .map(|failure| model.mark(token, failure.event_id, |entry| fail(entry, now, Some(failure.kind))))
            .collect();
        let marked = self.world.storage().mark_failed_batch(token, &failures).await;
        assert_eq!(marked.expect("no failure"), expected);
        let expected: Vec<Marked> = released.iter().map(|event| model.mark(token, *event, |_| {})).collect();
        assert_eq!(self.world.release(token, &released).await, expected);
    }

    /// Runs the history; then commits all transactions, kills all relays, and has another relay empty the
    /// outbox.
    pub(super) async fn all(mut self, ops: &[Op]) {
        for op in ops {
            self.step(op).await;
        }
        while !self.open.is_empty() {
            self.end(0, true).await;
        }
        self.relays = Default::default();
        // Each round may fail at most one event of each key, and the passing time ends their delays.
        for _ in 0..10 * (self.model.entries.len() + 1) {
            self.world.pass(LEASE * 4).await;
            self.reap().await;
            self.claim(0, 1_000, false).await;
            self.finish(0, 0, None).await;
        }
        for (event, entry) in &self.model.entries {
            let expected = match entry.status {
                Status::Done => "DELIVERED",
                Status::Dead => "DEAD",
                Status::Pending => panic!("{event} was never published: {entry:?}"),
            };
            let stored = self.world.get(*event).await.expect("it was committed");
            assert_eq!((&*stored.status, stored.attempts), (expected, entry.attempts), "{event}");
            assert!(entry.published > 0 || entry.status == Status::Dead, "{event} is lost");
        }
        for event in &self.rolled_back {
            assert_eq!(self.world.get(*event).await, None, "{event} was rolled back");
        }
    }
}
