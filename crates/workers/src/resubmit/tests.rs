//! Resubmission against a table in memory: each intent is appended once, and after a crash at least once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::entry::{EntryId, RawFields};
use domain::malformed_intent::KeptFields;
use domain::query::MalformedFilter;
use memory_stores::{Effect, MemoryDatabase, MemoryIntents, Scripted};

use super::*;
use crate::fixtures::{STREAM, World, down, now};

/// A row: its fields, and the id of its new entry.
type Row = (MalformedKey, String, Option<String>);

/// The malformed intents. While `fails`, nothing is marked.
#[derive(Default)]
struct Rows {
    rows: Mutex<Vec<Row>>,
    fails: Mutex<bool>,
    /// The numbers of marked rows, and of entries, of each chunk.
    actions: Mutex<Vec<(u64, usize)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rows {
    fn new(count: usize) -> Self {
        let rows = Self::default();
        for number in 1..=count {
            let entry_id = format!("{number}-0");
            let fields = RawFields::from_iter([("idempotency_key", entry_id.as_str())]);
            let key = MalformedKey {
                stream: STREAM.to_owned(),
                fields_fingerprint: fields.fingerprint(),
                entry_id,
            };
            lock(&rows.rows).push((key, KeptFields::of(fields).text().into_owned(), None));
        }
        rows
    }
}

impl ResubmitStore for &Rows {
    async fn select_malformed_intents(
        &self,
        _: &str,
        _: &ResubmitSelection,
    ) -> Result<ResubmitTargets, StoreError> {
        let rows = lock(&self.rows);
        let left = rows.iter().filter(|(_, _, new)| new.is_none());
        let target = |(key, ..): &Row| ResubmitTarget {
            key: key.clone(),
            failure_code: "recipient_not_found".to_owned(),
            producer: String::new(),
            is_whole: true,
            is_resubmitted: false,
            is_of_stream: true,
        };
        Ok(ResubmitTargets { targets: left.map(target).collect(), ..ResubmitTargets::default() })
    }

    async fn get_fields_to_resubmit(&self, key: &MalformedKey) -> Result<Option<String>, StoreError> {
        let rows = lock(&self.rows);
        let row = rows.iter().find(|(found, _, new)| found == key && new.is_none());
        Ok(row.map(|(_, json, _)| json.clone()))
    }

    async fn mark_resubmitted(
        &self,
        chunk: &[(MalformedKey, String)],
        _: &ResubmitSelection,
        _: ResubmitActor<'_>,
    ) -> Result<u64, StoreError> {
        if *lock(&self.fails) {
            return Err(down("mark resubmitted intents"));
        }
        let mut marked = 0;
        for (key, _, new) in lock(&self.rows).iter_mut() {
            if let Some((_, id)) = chunk.iter().find(|(found, _)| found == key)
                && new.is_none()
            {
                *new = Some(id.clone());
                marked += 1;
            }
        }
        lock(&self.actions).push((marked, chunk.len()));
        Ok(marked)
    }
}

type Subject<'a> =
    Resubmission<&'a Rows, Scripted<MemoryDatabase>, Scripted<MemoryIntents>, Scripted<MemoryIntents>>;

/// A world with a stream that had one entry.
async fn world() -> World {
    let world = World::new(now());
    world.intents.append(&RawFields::from_iter([("a", "b")])).await.expect("nothing fails");
    world
}

fn resubmission<'a>(rows: &'a Rows, world: &World) -> Subject<'a> {
    Resubmission {
        store: rows,
        checkpoints: world.database.clone(),
        intents: NamedStream { name: STREAM.to_owned(), stream: world.intents.clone() },
        producer: world.intents.clone(),
    }
}

fn appended(world: &World) -> usize {
    world.intents.ids().len() - 1
}

fn new_ids(rows: &Rows) -> Vec<String> {
    lock(&rows.rows).iter().filter_map(|(_, _, new)| new.clone()).collect()
}

async fn run(
    rows: &Rows,
    world: &World,
    go_on: impl FnMut(&ResubmitReport) -> bool + Send,
) -> Result<ResubmitReport, StoreError> {
    let resubmission = resubmission(rows, world);
    let selection = ResubmitSelection::Filter(MalformedFilter::default());
    let actor = ResubmitActor { name: "ada", request_id: "r", idempotency_key: None, reason: None };
    let targets = resubmission.select(&selection).await?;
    resubmission.resubmit(&targets, &selection, actor, go_on).await
}

#[tokio::test(start_paused = true)]
async fn every_intent_is_appended_once_in_chunks_and_the_report_names_the_new_entries() {
    let (rows, world) = (Rows::new(250), world().await);
    let report = run(&rows, &world, |_| true).await.expect("nothing fails");
    assert_eq!((report.resubmitted, report.refused, report.has_more), (250, 0, false));
    assert_eq!(appended(&world), 250);
    assert_eq!(*lock(&rows.actions), [(100, 100), (100, 100), (50, 50)]);
    assert_eq!(report.first[0].stream_entry_id, "1-0");
    assert_eq!(report.first[0].resubmitted_entry_id, new_ids(&rows)[0]);
    let again = run(&rows, &world, |_| true).await.expect("nothing fails");
    assert_eq!((again.resubmitted, appended(&world)), (0, 250));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_stopped_continues_with_the_rest() {
    let (rows, world) = (Rows::new(250), world().await);
    let stopped = run(&rows, &world, |_| false).await.expect("nothing fails");
    assert_eq!((stopped.resubmitted, stopped.has_more, stopped.continue_before), (100, true, None));
    let rest = run(&rows, &world, |_| true).await.expect("nothing fails");
    assert_eq!((rest.resubmitted, rest.has_more, appended(&world)), (150, false, 250));
}

#[tokio::test(start_paused = true)]
async fn entries_whose_rows_could_not_be_marked_are_appended_again_and_no_others() {
    let (rows, world) = (Rows::new(150), world().await);
    *lock(&rows.fails) = true;
    assert!(run(&rows, &world, |_| true).await.is_err());
    assert_eq!(appended(&world), 100, "the first chunk");
    *lock(&rows.fails) = false;
    let report = run(&rows, &world, |_| true).await.expect("nothing fails");
    assert_eq!((report.resubmitted, appended(&world)), (150, 250));
}

#[tokio::test(start_paused = true)]
async fn if_redis_fails_within_a_chunk_the_rows_of_the_entries_before_are_marked() {
    let (rows, world) = (Rows::new(50), world().await);
    let mut calls = 0;
    world.script.on("append", move |_| {
        calls += 1;
        if calls > 30 { Effect::Fail(down("append")) } else { Effect::Pass }
    });
    assert!(run(&rows, &world, |_| true).await.is_err());
    assert_eq!((new_ids(&rows).len(), lock(&rows.actions).clone()), (30, vec![(30, 30)]));
    world.script.off("append");
    let report = run(&rows, &world, |_| true).await.expect("nothing fails");
    assert_eq!((report.resubmitted, appended(&world)), (20, 50));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_appended_to_a_stream_on_another_server_or_to_one_that_is_gone() {
    let (rows, world) = (Rows::new(5), world().await);
    world.set_durable(EntryId::new(1, 0));
    let intake = world.intents.server().await.expect("nothing fails");
    world.database.save_intents_server(STREAM, &intake).await.expect("nothing fails");
    world.intents.restart();
    let error = run(&rows, &world, |_| true).await.expect_err("the service reads elsewhere");
    assert!(domain::ports::error_chain(&error).contains("on another Redis server"), "{error:?}");
    assert_eq!((appended(&world), new_ids(&rows).len()), (0, 0));
    let resumed = world.intents.server().await.expect("nothing fails");
    world.database.save_intents_server(STREAM, &resumed).await.expect("nothing fails");
    world.intents.delete();
    let error = run(&rows, &world, |_| true).await.expect_err("there is no stream");
    assert!(domain::ports::error_chain(&error).contains("does not have the stream"), "{error:?}");
    assert_eq!((world.intents.ids().len(), new_ids(&rows).len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn rows_that_were_deleted_or_resubmitted_after_the_selection_are_not_appended_and_count_as_refused() {
    let (rows, world) = (Rows::new(4), world().await);
    let resubmission = resubmission(&rows, &world);
    let selection = ResubmitSelection::Filter(MalformedFilter::default());
    let actor = ResubmitActor { name: "ada", request_id: "r", idempotency_key: None, reason: None };
    let targets = resubmission.select(&selection).await.expect("nothing fails");
    lock(&rows.rows).remove(0);
    lock(&rows.rows)[0].2 = Some("7-0".to_owned());
    lock(&rows.rows)[1].1 = r#"[["payload_json", {"omitted": {"bytes": 5}}]]"#.to_owned();
    let report = resubmission.resubmit(&targets, &selection, actor, |_| true).await.expect("nothing fails");
    assert_eq!((report.resubmitted, report.refused, appended(&world)), (1, 3, 1));
}
