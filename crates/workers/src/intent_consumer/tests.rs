//! What the intake does when its stores say no.

use ambient::SystemClock;
use domain::catalog::Catalog;
use domain::entry::RawFields;
use opentelemetry::global::meter;
use tokio::time::timeout;

use super::*;
use crate::fakes::{Recorded, World, down, intent};
use crate::handover::handover;

const BOUND: Duration = Duration::from_secs(20);

fn policy() -> Policy {
    Policy {
        catalog: Arc::new(Catalog::built_in()),
        admin_emails: HashMap::new(),
        locales: vec!["en".into()],
        push_max_attempts: 3,
        email_max_attempts: 7,
        idempotency_ttl: Duration::from_secs(60),
        head_start: Duration::from_secs(5),
    }
}

fn consumer(world: &World, batch_size: usize) -> Consumer {
    let (handover, _) = handover([]);
    IntentConsumer {
        election: world.clone(),
        intents: world.clone(),
        store: world.clone(),
        offsets: world.clone(),
        directory: world.clone(),
        clock: SystemClock,
        policy: Arc::new(policy()),
        handover,
        settings: IntakeSettings { stream: "intents".into(), batch_size, block: Duration::from_millis(1) },
        metrics: Metrics::new(&meter("test")),
        status: Status::default(),
    }
}

/// Runs the intake until `done`, with a bound.
async fn run_until(world: &World, batch_size: usize, done: impl Fn(&World, &Status) -> bool) {
    let consumer = consumer(world, batch_size);
    let (status, stop) = (consumer.status.clone(), CancellationToken::new());
    let running = tokio::spawn(consumer.run(stop.clone()));
    let waited = timeout(BOUND, async {
        while !done(world, &status) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.expect("the intake gets there");
    stop.cancel();
    timeout(BOUND, running).await.expect("it stops").expect("it does not panic");
}

type Consumer = IntentConsumer<World, World, World, World, World, SystemClock>;

async fn begin(consumer: &Consumer) -> Position {
    consumer.resume(1, FIRST_COUNT).await.expect("the fakes are there").expect("nobody else leads")
}

fn stream(world: &World, numbers: impl IntoIterator<Item = u64>) {
    let mut inner = world.lock();
    for number in numbers {
        inner.stream.push(intent(number, &format!("key-{number}"), "u-1"));
        inner.last_generated = EntryId::new(number, 0);
    }
}

fn outcomes(world: &World) -> Vec<(u64, String)> {
    world.lock().settled.iter().map(|(id, outcome)| (id.millis, outcome.clone())).collect()
}

fn at(number: u64) -> Option<Progress> {
    Some(Progress { fence: 1, last_entry_id: EntryId::new(number, 0) })
}

#[tokio::test]
async fn a_poison_element_is_quarantined_alone_and_its_neighbours_are_accepted_in_order() {
    let world = World::default();
    stream(&world, 1..=9);
    world.lock().poison.push(EntryId::new(4, 0));
    run_until(&world, 9, |world, _| world.lock().bookmark == at(9)).await;
    let expected: Vec<(u64, String)> =
        (1..=9).map(|n| (n, if n == 4 { "not_storable" } else { "accepted" }.to_owned())).collect();
    assert_eq!(outcomes(&world), expected);
}

#[tokio::test]
async fn what_comes_back_after_an_outage_is_settled_once_and_nothing_is_skipped() {
    for call in
        ["stand", "claim_progress", "load", "reset", "inspect", "read", "find_known", "accept", "save"]
    {
        let world = World::default();
        stream(&world, 1..=3);
        world.fail(call, down(call));
        run_until(&world, 2, |world, _| world.lock().progress == at(3)).await;
        assert_eq!(
            outcomes(&world).iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            [1, 2, 3],
            "{call}"
        );
    }
}

#[tokio::test]
async fn the_key_of_a_poison_element_is_the_next_entrys() {
    let world = World::default();
    {
        let mut inner = world.lock();
        inner.stream = vec![intent(1, "key", "u-1"), intent(2, "key", "u-1"), intent(3, "key", "u-2")];
        inner.last_generated = EntryId::new(3, 0);
        inner.poison.push(EntryId::new(1, 0));
    }
    run_until(&world, 9, |world, _| world.lock().bookmark == at(3)).await;
    let outcomes: Vec<String> = outcomes(&world).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["not_storable", "accepted", "idempotency_conflict"]);
}

#[tokio::test]
async fn a_stop_is_not_kept_waiting_by_a_directory_that_says_nothing() {
    let world = World::default();
    stream(&world, [1]);
    world.lock().hanging.push("look_up");
    run_until(&world, 9, |world, _| world.lock().calls.contains(&"look_up")).await;
    assert_eq!(outcomes(&world), []);
    assert_eq!(world.lock().progress, None);
}

#[tokio::test]
async fn a_read_that_fails_is_tried_again_with_fewer_entries() {
    let world = World::default();
    stream(&world, 1..=3);
    for _ in 0..3 {
        world.fail("read", down("read"));
    }
    run_until(&world, 9, |world, _| world.lock().progress == at(3)).await;
    assert_eq!(world.lock().counts[..4], [16, 8, 4, 2]);
}

#[tokio::test]
async fn a_failure_to_read_on_makes_the_intake_look_where_it_is() {
    let world = World::default();
    stream(&world, 1..=20);
    let consumer = consumer(&world, 16);
    let (mut position, stop) = (begin(&consumer).await, CancellationToken::new());
    position.ahead.extend(
        (1..=16).map(|n| Ahead::new(intent(n, &format!("key-{n}"), "u-1"), &consumer.policy, Instant::now())),
    );
    position.reads.more = true;
    world.fail("read", down("read"));
    assert!(matches!(consumer.run_once(&mut position, &stop).await, Err(StoreError::Unavailable { .. })));
    assert_eq!(outcomes(&world).len(), 16, "what had been read is settled all the same");
}

#[tokio::test]
async fn an_entry_that_must_wait_holds_the_stream_and_says_so() {
    let world = World::default();
    stream(&world, [1]);
    world.lock().stream.push(intent(2, "key-2", "slow"));
    world.lock().stream.push(intent(3, "key-3", "u-1"));
    world.lock().users.insert("slow".into(), Lookup::Unavailable("no answer".into()));
    run_until(&world, 9, |_, status| status.get().holdup.is_some()).await;
    assert_eq!(outcomes(&world), [(1, "accepted".to_owned())]);
    assert_eq!(world.lock().progress, at(1));

    world.lock().users.clear();
    run_until(&world, 9, |world, status| world.lock().progress == at(3) && status.get().holdup.is_none())
        .await;
}

#[tokio::test]
async fn postgresql_has_the_last_word_on_where_to_resume() {
    let world = World::default();
    stream(&world, 1..=5);
    world.lock().progress = at(3);
    world.lock().bookmark = at(5);
    run_until(&world, 9, |world, _| world.lock().progress == at(5)).await;
    assert_eq!(outcomes(&world).len(), 2);
    assert_eq!(world.lock().bookmark, at(5));
}

#[tokio::test]
async fn the_bookmark_counts_where_postgresql_knows_nothing() {
    let world = World::default();
    stream(&world, 1..=5);
    world.lock().bookmark = at(4);
    run_until(&world, 9, |world, _| world.lock().progress == at(5)).await;
    assert_eq!(outcomes(&world).len(), 1);
}

#[tokio::test]
async fn a_stream_that_is_made_anew_while_the_intake_runs_is_read_from_its_beginning() {
    let world = World::default();
    stream(&world, 100..=101);
    run_until(&world, 9, |world, _| {
        let settled = world.lock().settled.len();
        if settled == 2 {
            let mut inner = world.lock();
            inner.stream = vec![intent(1, "anew-1", "u-1"), intent(2, "anew-2", "u-1")];
            inner.last_generated = EntryId::new(2, 0);
        }
        settled == 4
    })
    .await;
    assert_eq!(outcomes(&world).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [100, 101, 1, 2]);
}

#[tokio::test]
async fn a_consumer_that_was_overtaken_resumes_behind_the_one_that_overtook_it() {
    let world = World::default();
    stream(&world, 1..=4);
    let overtaken = consumer(&world, 9);
    let mut position = begin(&overtaken).await;
    world.lock().progress = at(4);
    let pass =
        overtaken.run_once(&mut position, &CancellationToken::new()).await.expect("the fakes are there");
    assert!(matches!(pass, Pass::Lost));
    assert_eq!(outcomes(&world), []);
}

#[tokio::test]
async fn a_position_that_is_lost_again_and_again_is_said_and_paused_for_until_it_holds() {
    let world = World::default();
    stream(&world, 1..=3);
    world.lock().moves = true;
    let said = |status: &Status| status.get().holdup.is_some_and(|holdup| holdup.cause == LOST_AGAIN);
    run_until(&world, 9, |world, status| {
        if said(status) {
            world.lock().moves = false;
        }
        world.lock().progress == at(3) && status.get().holdup.is_none()
    })
    .await;
    let tried = world.lock().calls.iter().filter(|call| **call == "accept").count();
    assert!((3..10).contains(&tried), "{tried} tries");
}

#[tokio::test]
async fn entries_that_postgresql_has_forgotten_are_read_again() {
    let world = World::default();
    stream(&world, 1..=4);
    let set_back = consumer(&world, 9);
    let mut position = begin(&set_back).await;
    let stop = CancellationToken::new();
    assert!(matches!(set_back.run_once(&mut position, &stop).await, Ok(Pass::Onward)));
    // Restored from a backup that was taken behind entry 2.
    world.lock().progress = at(2);
    world.lock().settled.truncate(2);
    world.lock().keys.retain(|scope, _| ["key-1", "key-2"].contains(&scope.key.as_str()));
    stream(&world, [5]);
    run_until(&world, 9, |world, _| world.lock().progress == at(5)).await;
    assert_eq!(outcomes(&world).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(
        matches!(set_back.run_once(&mut position, &stop).await, Ok(Pass::Lost)),
        "the old position is worth nothing"
    );
}

#[tokio::test]
async fn known_keys_are_asked_for_at_first_and_then_only_when_there_was_one() {
    let world = World::default();
    stream(&world, 1..=3);
    let asked = |world: &World| world.lock().calls.iter().filter(|call| **call == "find_known").count();
    let consumer = consumer(&world, 1);
    let (mut position, stop) = (begin(&consumer).await, CancellationToken::new());
    // Reads and settles one, and settles the two that were read with it.
    for _ in 0..3 {
        assert!(matches!(consumer.run_once(&mut position, &stop).await, Ok(Pass::Onward)));
    }
    assert_eq!((outcomes(&world).len(), asked(&world)), (3, 1));

    let replays = [intent(4, "key-1", "u-1"), intent(5, "key-1", "u-1"), intent(6, "key-6", "u-1")];
    world.lock().stream.extend(replays);
    for expected in [2, 3, 4] {
        assert!(matches!(consumer.run_once(&mut position, &stop).await, Ok(Pass::Onward)));
        assert_eq!(asked(&world), expected);
    }
    let last: Vec<String> = outcomes(&world).into_iter().skip(3).map(|(_, outcome)| outcome).collect();
    assert_eq!(last, ["duplicate", "duplicate", "accepted"]);
}

#[tokio::test]
async fn a_replay_is_a_duplicate_whatever_the_directory_says_by_then() {
    for answer in [Lookup::Missing, Lookup::Unavailable("no answer".into())] {
        let world = World::default();
        stream(&world, [1]);
        let consumer = consumer(&world, 9);
        let (mut position, stop) = (begin(&consumer).await, CancellationToken::new());
        assert!(matches!(consumer.run_once(&mut position, &stop).await, Ok(Pass::Onward)));

        world.lock().users.insert("u-1".into(), answer);
        world.lock().stream.push(intent(2, "key-1", "u-1"));
        assert!(matches!(consumer.run_once(&mut position, &stop).await, Ok(Pass::Onward)));
        assert_eq!(outcomes(&world), [(1, "accepted".to_owned()), (2, "duplicate".to_owned())]);
    }
}

#[tokio::test]
async fn the_next_entries_are_read_while_the_first_are_written() {
    let world = World::default();
    stream(&world, 1..=40);
    run_until(&world, FIRST_COUNT, |world, _| world.lock().bookmark == at(40)).await;
    let calls = world.lock().calls.clone();
    let of = |name: &str| -> Vec<usize> {
        calls.iter().enumerate().filter(|(_, call)| **call == name).map(|(place, _)| place).collect()
    };
    assert!(of("read")[1] < of("accept")[0], "{calls:?}");
    assert_eq!(
        outcomes(&world).iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        Vec::from_iter(1..=40)
    );
}

#[tokio::test]
async fn a_replica_that_never_leads_says_so() {
    let (world, recorded) = (World::default(), Recorded::default());
    let follower = IntentConsumer { metrics: Metrics::new(&recorded.meter()), ..consumer(&world, 9) };
    let stop = CancellationToken::new();
    stop.cancel();
    timeout(BOUND, follower.run(stop)).await.expect("it stops");
    assert_eq!(recorded.values("notification.intake.leader"), [0]);
}

#[tokio::test]
async fn a_key_that_comes_again_in_the_next_batch_is_known() {
    let world = World::default();
    stream(&world, 1..=4);
    world.lock().stream.extend([
        intent(5, "key-4", "u-1"),
        intent(6, "key-6", "u-1"),
        intent(7, "key-4", "u-2"),
    ]);
    world.lock().last_generated = EntryId::new(7, 0);
    run_until(&world, 2, |world, _| world.lock().bookmark == at(7)).await;
    let outcomes: Vec<String> = outcomes(&world).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes[..4], ["accepted"; 4]);
    assert_eq!(outcomes[4..], ["duplicate", "accepted", "idempotency_conflict"]);
}

#[test]
fn a_read_asks_for_as_much_as_fits_into_a_transaction_by_what_came_last() {
    let entries = |number: usize, bytes: usize| -> Vec<Ahead> {
        let fields = || RawFields::from_iter([("f", "x".repeat(bytes - 1))]);
        let entry = |id: usize| RawEntry { id: EntryId::new(id as u64, 0), fields: fields() };
        (0..number).map(|id| Ahead::new(entry(id), &policy(), Instant::now())).collect()
    };
    for (asked, got, bytes, next) in [
        (16, 16, 500, 64),
        (64, 64, 500, 256),
        (256, 256, 500, 256),
        (256, 256, 256 * 1024, 16),
        (16, 1, 64 * 1024 * 1024, 1),
        (16, 0, 1, 64),
    ] {
        let mut reads = Reads::new(asked);
        reads.got(&entries(got, bytes.max(1)));
        assert_eq!((reads.count, reads.more), (next, got == asked), "{asked} asked, {got} of {bytes} bytes");
    }
}
