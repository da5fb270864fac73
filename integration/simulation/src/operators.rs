//! The operators of a simulation. Each repeats a request until a response shows that it was carried out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::hold::{HoldKey, HoldScope};
use domain::operations::{Budgets, OperatorAction, RouteChange, RouteFilter, Selection};
use domain::query::DeadLetterFilter;
use domain::record::IdempotencyKey;
use domain::route::{Channel, RouteKey};
use memory_stores::Remote;
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use workers::{BulkChange, BulkEnd, BulkReport, LeaseTimes, LeasedChanges};

use crate::clock::MachineClock;
use crate::dice::Dice;
use crate::network::Connection;
use crate::outbox_streams::PRODUCER;
use crate::plan::{Operation, PlannedOperation};
use crate::process::Process;
use crate::producers::key;
use crate::replica::{DEDUPE_TTL, EMAIL_MAX_ATTEMPTS, LEASE_TTL, PUSH_MAX_ATTEMPTS};
use crate::world::World;

/// The pause before a request is repeated.
const RETRY: Duration = Duration::from_millis(400);
/// The time after which an operator gives up a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// The share of commands, in a thousand, that are killed while they run, and repeated.
const KILLED: u64 = 300;
/// The time after which a hold is in force, and that in which an append is on its way at most.
const IN_FORCE: Duration = Duration::from_secs(2);
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// The budgets of routes that become pending again.
const BUDGETS: Budgets = Budgets { push: PUSH_MAX_ATTEMPTS, email: EMAIL_MAX_ATTEMPTS };

/// An operator with a request.
struct Operator<'a> {
    world: &'a Arc<World>,
    number: usize,
    dice: Dice,
    clock: Arc<MachineClock>,
}

/// Carries out an operation at its time.
pub(crate) async fn operate(world: Arc<World>, number: usize, planned: PlannedOperation) {
    sleep_until(world.started + planned.at).await;
    let dice = Dice::new(world.plan.seed, ("operator", number));
    let clock = Arc::new(MachineClock::new(world.started, dice.signed_ms(5_000)));
    let operator = Operator { world: &world, number, dice, clock };
    match planned.kind {
        Operation::Hold { channel, time } => operator.hold(channel, time).await,
        Operation::Cancel { channel } => {
            let filter = RouteFilter { channel: Some(channel), ..RouteFilter::default() };
            let cancel = RouteChange::Cancel { reason: "simulated".to_owned() };
            operator.change(cancel, Selection::Routes(filter)).await;
        }
        Operation::Replay => {
            let dead_letters = Selection::DeadLetters(DeadLetterFilter::default());
            operator.change(RouteChange::Replay(BUDGETS), dead_letters).await;
        }
        Operation::Resend { intent } => operator.resend(intent).await,
    }
}

impl Operator<'_> {
    fn connection(&self, process: &Process) -> Connection {
        Connection::new(process, &self.world.postgres.server, self.world.plan.seed, &self.world.trace)
    }

    /// Makes the hold of a channel, or releases it, until that is acknowledged.
    async fn set_hold(&self, channel: Channel, is_released: bool) {
        // Cannot fail: every channel can be held.
        let hold = HoldKey::new(HoldScope::Channel, channel.as_str().to_owned()).expect("a channel");
        let process = Process::new(format!("operator {}", self.number));
        let connection = self.connection(&process);
        let database = &self.world.postgres.database;
        while connection.call("set a hold", || database.set_hold(&hold, is_released)).await.is_err() {
            sleep(RETRY).await;
        }
        self.world.trace.event(&format!("{channel:?} is {}", if is_released { "released" } else { "held" }));
    }

    /// Holds a channel for some time. Meanwhile no live route of it may be appended.
    async fn hold(&self, channel: Channel, time: Duration) {
        self.set_hold(channel, false).await;
        sleep(IN_FORCE + ON_ITS_WAY).await;
        let held = self.unpublished(channel);
        sleep(time).await;
        let appended = self.appended(channel);
        // A store that lost data may have lost the hold, or an entry that is appended again.
        if !self.world.plan.loses_records() && !self.world.plan.replaces_redis() {
            let mut ledger = self.world.ledger.state();
            let broken =
                held.intersection(&appended).map(|name| format!("HOLD {name} was appended while held"));
            ledger.violations.extend(broken);
        }
        self.set_hold(channel, true).await;
        if self.world.plan.loses_records() {
            // PostgreSQL may have lost the release.
            sleep_until(self.world.started + self.world.plan.calm_begins()).await;
            self.set_hold(channel, true).await;
        }
    }

    /// The routes that have an entry in the stream of a channel.
    fn appended(&self, channel: Channel) -> BTreeSet<String> {
        self.world.published(channel).into_iter().map(|(route, _)| route).collect()
    }

    /// The live routes of a channel that have no entry.
    fn unpublished(&self, channel: Channel) -> BTreeSet<String> {
        let appended = self.appended(channel);
        let is_of_channel = |key: &RouteKey| key.route_id.starts_with(channel.as_str());
        let routes = self.world.postgres.database.routes().into_iter();
        let live = routes.filter(|(key, status)| status.is_live() && is_of_channel(key));
        live.map(|(key, _)| key.to_string()).filter(|name| !appended.contains(name)).collect()
    }

    /// Sends the client event of the first recipient of an intent again. A response that is lost is not
    /// requested again, because another request would send another entry.
    async fn resend(&self, intent: usize) {
        let Some(intent) = self.world.plan.intents.iter().find(|planned| planned.number == intent) else {
            return;
        };
        let accepted = self.world.postgres.database.accepted_keys();
        let is_of_intent =
            |request: &IdempotencyKey| request.producer == PRODUCER && request.key == key(intent);
        let Some((_, notification)) = accepted.iter().find(|(request, _)| is_of_intent(request)) else {
            return;
        };
        let route = format!("{notification}/push:user:u-{}", intent.number % 7);
        self.world.ledger.state().resent.insert(route.clone(), None);
        let resend = RouteChange::Resend { budgets: BUDGETS, reason: String::new() };
        let report = self.try_change(&resend, &Selection::Ids(vec![route.clone()])).await;
        if let Some((report, BulkEnd::Finished)) = report {
            self.world.ledger.state().resent.insert(route, Some(report.changed > 0));
        }
    }

    /// Makes a change until it is finished.
    async fn change(&self, change: RouteChange, selection: Selection) {
        while !matches!(self.try_change(&change, &selection).await, Some((_, BulkEnd::Finished))) {
            sleep(RETRY).await;
        }
    }

    /// Runs the command of a change once. `None` if it was killed or took too long.
    async fn try_change(&self, change: &RouteChange, selection: &Selection) -> Option<(BulkReport, BulkEnd)> {
        let (world, seed) = (self.world, self.world.plan.seed);
        let process = Process::new(format!("operator {}", self.number));
        let store = Remote::over(Arc::clone(&world.postgres.database), self.connection(&process));
        let redis = Connection::new(&process, &world.redis.server, seed, &world.trace);
        let command = BulkChange {
            operations: LeasedChanges {
                store: store.clone(),
                leases: Remote::over(Arc::clone(&world.redis.publishing), redis),
                times: LeaseTimes { lease_ttl: LEASE_TTL, dedupe_ttl: DEDUPE_TTL },
            },
            store,
            clock: Arc::clone(&self.clock),
            change: change.clone(),
            action: OperatorAction {
                actor: "operator".to_owned(),
                request_id: format!("request-{}", self.number),
                idempotency_key: None,
                selection: selection.clone(),
            },
            wait_for_publishers: true,
        };
        // A task of its own, so that what a killed command has sent may still arrive.
        let running = tokio::spawn(async move { command.run(&CancellationToken::new(), |_| {}).await });
        if self.dice.permille(KILLED) {
            sleep(self.dice.millis(1, 40)).await;
            if !running.is_finished() {
                process.kill();
                world.trace.event(&format!("{} is killed", process.name()));
                return None;
            }
        }
        let ended = timeout(PATIENCE, running).await;
        if ended.is_err() {
            process.kill();
        }
        // Cannot fail: no command panics.
        ended.ok().map(|ended| ended.expect("the command ends"))
    }
}
