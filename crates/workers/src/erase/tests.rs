//! Erasures that die at any call, that meet locks of other transactions or leases of publishers, or during
//! which an intent is accepted.

use ambient::{ManualClock, SeededTokens};
use domain::entry::{EntryId, RawFields};
use domain::outbound::OutboundEntry;
use domain::ports::{Append, LeaseOutcome, LeaseToken, Outbound};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey};
use serde_json::json;
use tokio::time::sleep;

use super::records::Marked;
use super::*;
use crate::fixtures::now;

mod fakes;

use fakes::{Contents, Fakes, INTENTS, PUSH};

type FakeEraser<'a> = Eraser<&'a Fakes, &'a Fakes, &'a Fakes, &'a Fakes, &'a Fakes, Arc<ManualClock>>;

const DEDUPE_TTL: Duration = Duration::from_secs(120);
const BY: HoldActor<'_> = HoldActor { name: "ada", request_id: "r", idempotency_key: None };

fn id(number: usize) -> NotificationId {
    NotificationId::from(format!("{number}-0"))
}

fn user() -> ErasedUser {
    ErasedUser::new("u-1".to_owned(), b"installation").expect("an id")
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(now()))
}

fn entry(name: &str, value: &str) -> RawFields {
    [(name, value)].into_iter().collect()
}

/// Records to the user, to both, and to the other; every second route is live. Each has its entries.
fn contents(records: usize) -> Contents {
    let mut contents =
        Contents { has_document: true, checkpoint: EntryId::new(1_000_000, 0), ..Contents::default() };
    for number in 1..=records {
        let users = [&["u-1"][..], &["u-1", "u-2"], &["u-2"]][number % 3];
        contents.records.insert(id(number), users.iter().map(|user| (*user).to_owned()).collect());
        for user in users {
            for channel in ["push", "email"] {
                let route = format!("{channel}:user:{user}");
                contents.routes.insert((id(number), route), number % 2 == 0);
            }
            let key = format!("{number}-0/push:user:{user}");
            let place = EntryId::new(number as u64, user.len() as u64 + u64::from(*user == "u-1"));
            contents.streams.entry(PUSH.to_owned()).or_default().insert(place, entry("event_id", &key));
        }
        let named = entry("recipient_user_ids_json", &json!(users).to_string());
        let place = EntryId::new(number as u64, 0);
        contents.streams.entry(INTENTS.to_owned()).or_default().insert(place, named);
    }
    let malformed = |field: &str| json!([[field, json!(["u-1"]).to_string()]]).to_string();
    contents.malformed.insert("7-0".to_owned(), malformed("recipient_user_ids_json"));
    contents.malformed.insert("8-0".to_owned(), malformed("payload_json"));
    contents.actions.insert(1, json!({"ids": ["1-0/push:user:u-1", "1-0/push:user:u-2"]}));
    contents.mentions.push(id(3));
    contents
}

/// The contents after an erasure.
fn erased(mut contents: Contents) -> Contents {
    contents.has_document = false;
    contents.records.values_mut().for_each(|users| users.retain(|user| user != "u-1"));
    contents.records.retain(|_, users| !users.is_empty());
    contents.routes.retain(|(_, route), _| !route.ends_with("u-1"));
    contents.malformed.insert("7-0".to_owned(), "[]".to_owned());
    contents.actions.insert(1, json!({"ids": ["1-0/push:user:erased", "1-0/push:user:u-2"]}));
    for entries in contents.streams.values_mut() {
        let names_user = |fields: &RawFields| {
            fields.0.iter().any(|(_, value)| String::from_utf8_lossy(value).contains("u-1"))
        };
        entries.retain(|_, fields| !names_user(fields));
    }
    contents
}

fn eraser(fakes: &Fakes, time_limit: Option<Duration>) -> FakeEraser<'_> {
    Eraser {
        stores: ErasureStores {
            tables: fakes,
            audited: fakes,
            streams: fakes,
            deletion: fakes,
            leases: fakes,
        },
        settings: ErasureSettings {
            intents_stream: INTENTS.to_owned(),
            outbound_streams: vec![PUSH.to_owned()],
            users_prefix: Some("users/"),
            dedupe_ttl: DEDUPE_TTL,
            time_limit,
        },
        clock: clock(),
        ids: Arc::new(SeededTokens::new(1)),
    }
}

async fn run(fakes: &Fakes) -> Result<ErasureReport, StoreError> {
    let report = eraser(fakes, None).erase_user("u-1", BY, now()).await?;
    Ok(report.expect("an installation"))
}

/// The live routes of the user that a publisher with a copy in memory could take.
async fn takeable(fakes: &Fakes, before: &Contents) -> Vec<RouteKey> {
    let of_user = before.routes.iter().filter(|((_, route), is_live)| **is_live && route.ends_with("u-1"));
    let keys: Vec<RouteKey> = of_user
        .map(|((id, route), _)| RouteKey { notification_id: id.clone(), route_id: route.clone() })
        .collect();
    assert!(!keys.is_empty());
    let asked: Vec<&RouteKey> = keys.iter().collect();
    let publisher = LeaseToken("publisher".to_owned());
    let outcomes = fakes.leases.acquire_leases(&asked, &publisher, DEDUPE_TTL).await.expect("it is there");
    keys.into_iter()
        .zip(outcomes)
        .filter(|(_, outcome)| *outcome != LeaseOutcome::Held)
        .map(|(key, _)| key)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn wherever_it_dies_the_next_run_erases_the_rest_and_a_third_one_finds_nothing() {
    let before = contents(12);
    let after = erased(before.clone());
    let mut deaths = 0;
    for call in 0.. {
        let mut died = false;
        for had_effect in [false, true] {
            let fakes = Fakes::new(before.clone(), &clock());
            fakes.fail_at(Some((call, had_effect)));
            died |= run(&fakes).await.is_err();
            fakes.fail_at(None);
            let second = run(&fakes).await.expect("the stores are there");
            assert!(second.complete, "call {call}: {second:?}");
            assert_eq!(*fakes.contents(), after, "call {call}");
            let third = run(&fakes).await.expect("the stores are there");
            assert_eq!(
                (third.rows.total(), third.stream_entries, third.complete),
                (0, 0, true),
                "call {call}"
            );
            assert_eq!(takeable(&fakes, &before).await, [], "call {call}");
        }
        if !died {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 20, "{deaths} calls");
}

#[tokio::test(start_paused = true)]
async fn many_records_go_in_chunks_and_the_report_counts_all() {
    let fakes = Fakes::new(contents(900), &clock());
    let report = run(&fakes).await.expect("the stores are there");
    assert_eq!(*fakes.contents(), erased(contents(900)));
    assert_eq!(
        (report.rows.records_deleted, report.rows.records_changed, report.rows.routes),
        (300, 300, 1_200)
    );
    assert_eq!(
        (report.rows.malformed_intents, report.rows.actions, report.rows.directory_documents),
        (1, 1, 1)
    );
    assert_eq!((report.stream_entries, report.mentions.count.count, report.complete), (1_200, 2, true));
}

#[tokio::test(start_paused = true)]
async fn a_plan_changes_nothing() {
    let fakes = Fakes::new(contents(12), &clock());
    let plan = eraser(&fakes, None).plan_erasure("u-1").await.expect("it is there").expect("an installation");
    assert_eq!((plan.notifications.count, plan.malformed_intents, plan.directory_document), (8, 1, true));
    assert_eq!((plan.mentions.count.count, plan.mentions.count.capped), (2, false));
    assert_eq!((plan.stream_entries.count, plan.stream_entries.capped), (16, false));
    assert_eq!(*fakes.contents(), contents(12));
    assert_eq!(takeable(&fakes, &contents(12)).await.len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_has_a_lease_is_waited_for_and_left_out_if_it_keeps_it() {
    let publisher = LeaseToken("publisher".to_owned());
    for keeps in [false, true] {
        let fakes = Fakes::new(contents(12), &clock());
        let [key, _] = user().routes(&id(4));
        let taken = fakes.leases.acquire_leases(&[&key], &publisher, DEDUPE_TTL).await;
        assert_eq!(taken.expect("it is there"), [LeaseOutcome::Won]);
        let publishing = async {
            sleep(Duration::from_secs(2)).await;
            if !keeps {
                fakes.leases.release_leases(&[&key], &publisher).await.expect("it is there");
            }
        };
        let (report, ()) = tokio::join!(run(&fakes), publishing);
        assert_eq!(report.expect("the stores are there").complete, !keeps);
        assert_eq!(fakes.contents().records.get(&id(4)).is_some_and(|users| users.contains("u-1")), keeps);
        assert!(!fakes.contents().records.contains_key(&id(6)), "others go");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_a_route_that_is_not_live_is_not_waited_for() {
    let fakes = Fakes::new(contents(12), &clock());
    let [key, _] = user().routes(&id(1));
    let cancelled = LeaseToken("cancel:ada:r".to_owned());
    let _ = fakes.leases.acquire_leases(&[&key], &cancelled, DEDUPE_TTL).await.expect("it is there");
    assert!(run(&fakes).await.expect("the stores are there").complete);
    assert_eq!(*fakes.contents(), erased(contents(12)));
}

#[tokio::test(start_paused = true)]
async fn a_copy_in_memory_of_a_route_that_is_to_be_sent_again_gets_no_lease() {
    let fakes = Fakes::new(contents(12), &clock());
    let [key, _] = user().routes(&id(4));
    let publisher = LeaseToken("publisher".to_owned());
    let won = fakes.leases.acquire_leases(&[&key], &publisher, DEDUPE_TTL).await.expect("it is there");
    assert_eq!(won, [LeaseOutcome::Won]);
    let entry = OutboundEntry(vec![("event_id", key.to_string().into())]);
    let appended = fakes
        .leases
        .append(Channel::Push, &[(&key, &entry)], &publisher, DEDUPE_TTL, None)
        .await
        .expect("it is there");
    let [Append::Done(entry)] = &appended.entries[..] else { panic!("{appended:?}") };
    assert!(run(&fakes).await.expect("the stores are there").complete);
    let copy = Marked { key: &key, entry_id: entry.entry_id.clone() };
    let outcomes = fakes.leases.acquire_leases(&[&copy], &publisher, DEDUPE_TTL).await.expect("it is there");
    assert_eq!(outcomes, [LeaseOutcome::Held]);
}

#[tokio::test(start_paused = true)]
async fn a_run_releases_no_lease_of_a_record_that_another_transaction_has() {
    let fakes = Fakes::new(contents(12), &clock());
    fakes.contents().locked.insert(id(6));
    let report = run(&fakes).await.expect("the stores are there");
    assert!(!report.complete);
    // The other transaction may be a run beside this one, with the same token, which deletes live routes.
    assert_eq!(takeable(&fakes, &contents(12)).await, []);
    fakes.contents().locked.clear();
    assert!(run(&fakes).await.expect("the stores are there").complete);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_not_processed_stays_and_the_next_run_finds_it() {
    let mut before = contents(12);
    before.checkpoint = EntryId::new(11, 0);
    before.records.retain(|id, _| id.as_str() != "12-0");
    let fakes = Fakes::new(before, &clock());
    let report = run(&fakes).await.expect("the stores are there");
    assert_eq!((report.unread_entries, report.complete), (1, false));
    assert!(fakes.contents().streams[INTENTS].contains_key(&EntryId::new(12, 0)));
    fakes.contents().checkpoint = EntryId::new(12, 0);
    let report = run(&fakes).await.expect("the stores are there");
    assert_eq!((report.stream_entries, report.unread_entries, report.complete), (1, 0, true));
}

#[tokio::test(start_paused = true)]
async fn a_run_without_time_is_incomplete_and_one_that_only_cannot_count_mentions_is_not() {
    let fakes = Fakes::new(contents(12), &clock());
    let late = eraser(&fakes, Some(Duration::ZERO)).erase_user("u-1", BY, now()).await.expect("it is there");
    let late = late.expect("an installation");
    assert!(!late.complete && late.mentions.count.capped, "{late:?}");
    assert_eq!(late.rows.routes, 0);
    let run = run(&fakes).await.expect("the stores are there");
    assert!(run.complete && !run.mentions.count.capped, "{run:?}");
}
