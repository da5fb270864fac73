//! The outcomes that callers receive, and when, while stores and neighbours fail.

mod claims;
mod fairness;
mod free_keys;
mod refusals;

use ambient::SeededTokens;
use domain::catalog::Catalog;
use domain::entry::EntryId;
use domain::intent;
use domain::outcome::{Acceptance, Outcome};
use domain::ports::{AcceptanceBatch, AcceptanceStore, Fate, Lookup, User};
use domain::record::NotificationId;
use domain::submission::{self, Held};
use futures_util::FutureExt;
use futures_util::future::join_all;
use memory_stores::{Effect, MemoryDatabase};
use opentelemetry::global::meter;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;
use crate::dispatch::dispatch;
use crate::fixtures::{World, WorldPorts, down, intent as entry, locked, now, policy, refused, timed_out};

/// The bound of a run, by the paused clock of the runtime, which advances only while no task is running.
const BOUND: Duration = Duration::from_secs(600);
const LOCK_TTL: Duration = Duration::from_secs(60);
/// The duration of a slow lookup.
const SLOW: Duration = Duration::from_secs(5);
/// The user whose lookup is slow.
const SLOW_USER: &str = "u-slow";
/// The seed of the tokens. The first token is that of the first claim.
const SEED: u64 = 7;

/// A running intake.
struct Running {
    queue: SubmissionQueue,
    health: Health,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(world: &World) -> Self {
        let (health, stop) = (Health::new("submissions"), CancellationToken::new());
        let metrics = Metrics::new(&meter("test"));
        let (queue, receiver) = submission_queue(metrics.clone(), health.clone());
        let (dispatcher, _) = dispatch([]);
        let intake: SubmissionIntake<WorldPorts> = SubmissionIntake {
            store: world.database.clone(),
            directory: world.directory.clone(),
            clock: Arc::clone(&world.clock),
            tokens: SeededTokens::new(SEED),
            policy: Arc::new(policy()),
            dispatcher,
            lock_ttl: LOCK_TTL,
            response: stored_response,
            metrics,
            traces: Traces::default(),
            health: health.clone(),
        };
        Self { task: tokio::spawn(intake.run(receiver, stop.clone())), queue, health, stop }
    }

    async fn submit(&self, submission: Submission) -> SubmissionOutcome {
        timeout(BOUND, self.queue.submit(submission)).await.expect("it is answered")
    }

    /// Submits all of them at once.
    async fn submit_all(&self, submissions: impl IntoIterator<Item = Submission>) -> Vec<SubmissionOutcome> {
        join_all(submissions.into_iter().map(|submission| self.submit(submission))).await
    }

    /// Submits in the background.
    fn spawn(&self, submission: Submission) -> JoinHandle<SubmissionOutcome> {
        let queue = self.queue.clone();
        tokio::spawn(async move { queue.submit(submission).await })
    }

    async fn stop(self) {
        self.stop.cancel();
        timeout(BOUND, self.task).await.expect("it stops").expect("it does not panic");
    }
}

fn stored_response(acceptance: &Acceptance) -> StoredResponse {
    StoredResponse { status: 202, body: acceptance.record.notification_id.as_str().into() }
}

fn world() -> World {
    World::new(now())
}

/// A world in which one user is looked up slowly.
fn world_with_slow_look_up(time: Duration) -> World {
    let world = world();
    world.script.on("look_up", move |call| match call.elements.iter().any(|user| user == SLOW_USER) {
        true => Effect::Delay(time),
        false => Effect::Pass,
    });
    world
}

/// An intent for one user whose response is stored.
fn submission(key: &str, user: &str) -> Submission {
    let intent = intent::decode(&entry(1, key, user).fields, &Catalog::built_in()).expect("well-formed");
    Submission { intent, stores_response: true, request_trace: None, held: Held::default() }
}

/// An intent for one user that does not claim a key.
fn unclaimed(key: &str, user: &str) -> Submission {
    Submission { stores_response: false, ..submission(key, user) }
}

fn key(key: &str) -> IdempotencyKey {
    submission(key, "u-1").intent.key()
}

/// Submissions with the keys `key-1` and so on, each for a different user.
fn several(count: usize) -> Vec<Submission> {
    (1..=count).map(|number| submission(&format!("key-{number}"), &format!("u-{number}"))).collect()
}

/// Accepts an intent as another replica does.
async fn accept_elsewhere(database: &MemoryDatabase, submission: &Submission) -> Fate {
    let user = User { email: "u@example.com".to_owned(), preferred_language: "en".to_owned() };
    let users = submission.intent.audience.users().iter().map(|id| (id.clone(), Lookup::Found(user.clone())));
    let (id, policy) = (NotificationId::of(EntryId::new(1, 0), 0), policy());
    let schedule = policy.schedule(now(), true);
    let decision = submission::decide(&submission.intent, None, &users.collect(), id, &policy, schedule);
    let outcome = Outcome::Accepted(decision.expect("it is accepted"));
    let batch = AcceptanceBatch { outcomes: vec![&outcome], checkpoint: None, responses: Vec::new() };
    database.accept(batch).await.expect("the store is there")
}

fn name(outcome: &SubmissionOutcome) -> &'static str {
    match outcome {
        SubmissionOutcome::Accepted { .. } => "accepted",
        SubmissionOutcome::Replayed(_) => "replayed",
        SubmissionOutcome::Duplicate(_) => "duplicate",
        SubmissionOutcome::Conflict(_) => "conflict",
        SubmissionOutcome::InProgress(_) => "in progress",
        SubmissionOutcome::Rejected(rejection) => rejection.code.as_str(),
        SubmissionOutcome::Unavailable(_) => "unavailable",
    }
}

fn names(outcomes: &[SubmissionOutcome]) -> Vec<&'static str> {
    outcomes.iter().map(name).collect()
}

/// The number of intents that each committed transaction accepted.
fn transactions(world: &World) -> Vec<usize> {
    let calls = world.script.calls_of("accept").into_iter().filter(|call| call.succeeded);
    calls.map(|call| call.elements.iter().filter(|text| text.ends_with(" accepted")).count()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lone_submission_waits_for_nothing() {
    let world = world();
    let running = Running::start(&world);
    let since = Instant::now();
    let outcome = running.submit(submission("key-1", "u-1")).await;
    assert_eq!((name(&outcome), since.elapsed()), ("accepted", Duration::ZERO));
    let SubmissionOutcome::Accepted { notification_id, accepted_at, routes, response } = outcome else {
        return;
    };
    assert_eq!(world.database.records(), std::slice::from_ref(&notification_id));
    assert_eq!((accepted_at, routes), (now(), 2));
    assert_eq!(response.map(|response| response.body), Some(notification_id.as_str().into()));
}

#[tokio::test(start_paused = true)]
async fn submissions_that_wait_together_share_one_claim_statement_and_one_transaction() {
    let world = world();
    let outcomes = Running::start(&world).submit_all(several(10)).await;
    assert_eq!(names(&outcomes), ["accepted"; 10]);
    let claimed: Vec<usize> =
        world.script.calls_of("claim_keys").iter().map(|call| call.elements.len()).collect();
    assert_eq!((claimed, transactions(&world)), (vec![10], vec![10]));
    assert_eq!(world.script.count("find_requests"), 0);
}

#[tokio::test(start_paused = true)]
async fn submissions_that_come_during_a_transaction_share_the_next_one() {
    let world = world();
    world.script.on("accept", |_| Effect::Delay(Duration::from_millis(20)));
    let running = Running::start(&world);
    let first = running.spawn(submission("first", "u-1"));
    world.script.until(BOUND, || world.script.count("accept") == 1).await;
    let outcomes = running.submit_all(several(5)).await;
    assert_eq!(names(&outcomes), ["accepted"; 5]);
    assert_eq!(name(&first.await.expect("no panic")), "accepted");
    assert_eq!(transactions(&world), [1, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_look_up_delays_only_its_own_submission() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let since = Instant::now();
    let slow = async { (running.submit(submission("key-s", SLOW_USER)).await, since.elapsed()) };
    let others = async { (running.submit_all(several(3)).await, since.elapsed()) };
    let ((slow, slow_took), (others, others_took)) = futures_util::future::join(slow, others).await;
    assert_eq!((name(&slow), slow_took), ("accepted", SLOW));
    assert_eq!((names(&others), others_took), (vec!["accepted"; 3], Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_repeat_does_not_depend_on_the_directory() {
    for lookup in [Lookup::Missing, Lookup::Unavailable("down".to_owned())] {
        let world = world();
        let running = Running::start(&world);
        let first = running.submit(submission("key-1", "u-1")).await;
        let SubmissionOutcome::Accepted { response: Some(stored), .. } = first else { panic!("{first:?}") };
        world.directory.set("u-1", lookup);
        assert_eq!(running.submit(submission("key-1", "u-1")).await, SubmissionOutcome::Replayed(stored));
        assert_eq!(name(&running.submit(unclaimed("key-1", "u-1")).await), "duplicate");
        world.database.expire_key(&key("key-1"));
        assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "duplicate");
        assert_eq!(name(&running.submit(submission("key-1", "u-2")).await), "conflict");
        assert_eq!(world.database.records().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn another_intent_under_an_answered_key_is_a_conflict() {
    let world = world();
    let running = Running::start(&world);
    assert_eq!(name(&running.submit(submission("key-1", "u-1")).await), "accepted");
    let told = running.submit(submission("key-1", "u-2")).await;
    assert_eq!(told, SubmissionOutcome::Conflict(world.database.records().remove(0)));
}

#[tokio::test(start_paused = true)]
async fn of_two_with_one_key_the_second_is_told_that_the_first_is_in_progress() {
    let world = world();
    let twice = [submission("key-1", "u-1"), submission("key-1", "u-1")];
    let outcomes = Running::start(&world).submit_all(twice).await;
    assert_eq!(names(&outcomes), ["accepted", "in progress"]);
}

#[tokio::test(start_paused = true)]
async fn two_with_one_key_that_are_not_claimed_are_decided_one_after_the_other() {
    for (user, second) in [("u-1", "duplicate"), ("u-2", "conflict")] {
        let world = world();
        let submissions = [unclaimed("key-1", "u-1"), unclaimed("key-1", user), unclaimed("key-2", "u-1")];
        let outcomes = Running::start(&world).submit_all(submissions).await;
        assert_eq!(names(&outcomes), ["accepted", second, "accepted"]);
        assert_eq!(world.script.count("claim_keys"), 0);
        assert_eq!(world.database.records().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_conflict_decides_the_group_again() {
    let world = world();
    let (database, taken) = ((*world.database).clone(), submission("key-1", "u-1"));
    world.script.on("accept", move |_| {
        // Another replica accepts the intent first. In later calls its key is already taken.
        match accept_elsewhere(&database, &taken).now_or_never() {
            Some(Fate::Committed | Fate::WriteConflict) => Effect::Pass,
            other => panic!("{other:?}"),
        }
    });
    let outcomes = Running::start(&world).submit_all(several(2)).await;
    assert_eq!(names(&outcomes), ["duplicate", "accepted"]);
    assert_eq!(transactions(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_accepts_what_was_submitted_before_it_and_nothing_after() {
    let world = world_with_slow_look_up(SLOW);
    let running = Running::start(&world);
    let mut submitted =
        Box::pin(running.submit_all([several(2), vec![submission("key-s", SLOW_USER)]].concat()));
    assert!((&mut submitted).now_or_never().is_none(), "they wait");
    running.stop.cancel();
    assert_eq!(names(&submitted.await), ["accepted"; 3]);
    assert_eq!(name(&running.submit(submission("late", "u-1")).await), "unavailable");
    running.stop().await;
}
