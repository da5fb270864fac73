//! Random histories of several clients: both stores return the results of a model that keeps the promises in
//! the simplest way.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use state::json::{Json, merge};
use state::{
    Delete, MemoryStore, Patch, StatusCondition, Store, Version, VersionCondition, Write, WriteConditions,
};

use crate::support::{Db, key, prefix, tree, value};

/// Some keys are prefixes of others.
const KEYS: [&str; 6] = ["a", "a/b", "a_b", "aX", "ä", "b"];
const PREFIXES: [&str; 5] = ["", "a", "a_", "ä", "c"];
const VALUES: [&str; 9] = [
    "1",
    "{}",
    r#"{"status":"pending"}"#,
    r#"{"status":"done","n":1.10}"#,
    r#"{"status":7}"#,
    r#"{"a":{"b":null,"c":[1]}}"#,
    r#"{"a":null,"status":null}"#,
    r#"["status"]"#,
    r#"{"a":{"b":2},"status":"pending"}"#,
];
const STATUSES: [&str; 3] = ["pending", "done", "7"];

/// A condition on the version; the actual version depends on the history.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Any,
    Exists,
    Absent,
    NoVersion,
    Current,
    /// The version of an earlier write, to any key.
    Earlier(usize),
}

#[derive(Clone, Debug)]
enum Op {
    Put(usize, usize, Wanted, Option<usize>),
    Patch(usize, usize, Wanted, Option<usize>),
    Delete(usize, Wanted),
    Get(usize),
    GetMany(Vec<usize>),
    List(usize, Option<usize>, u32),
}

fn any_wanted() -> impl Strategy<Value = Wanted> {
    prop_oneof![
        4 => Just(Wanted::Any),
        1 => Just(Wanted::Exists),
        1 => Just(Wanted::Absent),
        1 => Just(Wanted::NoVersion),
        3 => Just(Wanted::Current),
        2 => (0..20_usize).prop_map(Wanted::Earlier),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let (key, value) = (0..KEYS.len(), 0..VALUES.len());
    let status = prop_oneof![2 => Just(None), 1 => (0..STATUSES.len()).prop_map(Some)];
    let write = (key.clone(), value, any_wanted(), status).boxed();
    prop_oneof![
        5 => write.clone().prop_map(|(key, value, wanted, status)| Op::Put(key, value, wanted, status)),
        3 => write.prop_map(|(key, value, wanted, status)| Op::Patch(key, value, wanted, status)),
        2 => (key.clone(), any_wanted()).prop_map(|(key, wanted)| Op::Delete(key, wanted)),
        2 => key.clone().prop_map(Op::Get),
        1 => prop::collection::vec(key.clone(), 0..9).prop_map(Op::GetMany),
        2 => (0..PREFIXES.len(), prop::option::of(key), 1..5_u32)
            .prop_map(|(prefix, after, limit)| Op::List(prefix, after, limit)),
    ]
}

#[derive(Default)]
struct Model {
    rows: BTreeMap<&'static str, (Json, Version)>,
    /// The versions of all writes, in order.
    versions: Vec<Version>,
}

impl Model {
    fn condition(&self, name: &str, wanted: Wanted) -> VersionCondition {
        match wanted {
            Wanted::Any => VersionCondition::Any,
            Wanted::Exists => VersionCondition::Exists,
            Wanted::Absent => VersionCondition::Absent,
            Wanted::NoVersion => VersionCondition::Is(None),
            Wanted::Current => VersionCondition::Is(self.rows.get(name).map(|row| row.1)),
            Wanted::Earlier(back) => VersionCondition::Is(self.versions.iter().rev().nth(back).copied()),
        }
    }

    fn version_holds(&self, name: &str, condition: VersionCondition) -> bool {
        match (condition, self.rows.get(name)) {
            (VersionCondition::Any, _) => true,
            (VersionCondition::Exists, row) => row.is_some(),
            (VersionCondition::Absent, row) => row.is_none(),
            (VersionCondition::Is(Some(wanted)), Some(row)) => wanted == row.1,
            (VersionCondition::Is(_), _) => false,
        }
    }

    /// The outcome of a write that is not applied.
    fn refusal(&self, name: &str, conditions: &WriteConditions) -> Option<Write> {
        if !self.version_holds(name, conditions.version) {
            return Some(Write::VersionMismatch);
        }
        let status = conditions.status.as_ref()?;
        let current = self.rows.get(name).and_then(|row| row.0.get("status")?.as_str().map(str::to_owned));
        (current.as_deref() != Some(&*status.0)).then_some(Write::StatusMismatch { current })
    }

    /// Applies a write that a store has reported as applied.
    fn apply(&mut self, name: &'static str, json: Json, applied: &Write) {
        let Write::Applied(version) = applied else { panic!("{name}: {applied:?} instead of a new version") };
        assert!(self.versions.last().is_none_or(|last| last < version), "versions rise and never repeat");
        self.versions.push(*version);
        self.rows.insert(name, (json, *version));
    }

    async fn step(&mut self, store: &impl Store, op: &Op) {
        match op {
            Op::Put(name, text, wanted, status) => {
                let (name, text) = (KEYS[*name], VALUES[*text]);
                let conditions = self.conditions(name, *wanted, *status);
                let refusal = self.refusal(name, &conditions);
                let written = store.put(&key(name), &value(text), &conditions).await.expect("no failure");
                match refusal {
                    Some(refusal) => assert_eq!(written, refusal),
                    None => self.apply(name, tree(&value(text)), &written),
                }
            }
            Op::Patch(name, text, wanted, status) => {
                let (name, text) = (KEYS[*name], VALUES[*text]);
                let conditions = self.conditions(name, *wanted, *status);
                let refusal = self.refusal(name, &conditions);
                let patched = store.patch(&key(name), &value(text), &conditions).await.expect("no failure");
                match (self.rows.get(name), refusal) {
                    (None, _) => assert_eq!(patched, Patch::NotFound),
                    (Some(_), Some(refusal)) => assert_eq!(patched, Patch::Written(refusal)),
                    (Some((old, _)), None) => {
                        let merged = merge(old.clone(), tree(&value(text)));
                        let Patch::Written(written) = patched else { panic!("{patched:?}") };
                        self.apply(name, merged, &written);
                    }
                }
            }
            Op::Delete(name, wanted) => {
                let name = KEYS[*name];
                let condition = self.condition(name, *wanted);
                let expected = match (self.rows.contains_key(name), self.version_holds(name, condition)) {
                    (false, _) => Delete::NotFound,
                    (true, true) => Delete::Applied,
                    (true, false) => Delete::VersionMismatch,
                };
                assert_eq!(store.delete(&key(name), condition).await.expect("no failure"), expected);
                if expected == Delete::Applied {
                    self.rows.remove(name);
                }
            }
            Op::Get(name) => self.is_read(store, &[*name]).await,
            Op::GetMany(names) => self.is_read(store, names).await,
            Op::List(start, after, limit) => {
                self.is_listed(store, PREFIXES[*start], after.map(|at| KEYS[at]), *limit).await
            }
        }
    }

    fn conditions(&self, name: &str, wanted: Wanted, status: Option<usize>) -> WriteConditions {
        let status = status.map(|status| StatusCondition(STATUSES[status].into()));
        WriteConditions { version: self.condition(name, wanted), status }
    }

    async fn is_read(&self, store: &impl Store, names: &[usize]) {
        let keys: Vec<_> = names.iter().map(|name| key(KEYS[*name])).collect();
        let found = match &keys[..] {
            [one] => store.get(one).await.expect("no failure").into_iter().collect(),
            many => store.get_many(many).await.expect("no failure"),
        };
        let mut expected = Vec::new();
        for name in names.iter().map(|name| KEYS[*name]) {
            if self.rows.contains_key(name) && !expected.contains(&name) {
                expected.push(name);
            }
        }
        assert_eq!(found.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), expected);
        for document in found {
            let (json, version) = &self.rows[document.key.as_str()];
            assert_eq!((&tree(&document.value), document.version), (json, *version));
            assert!(document.created_at <= document.updated_at);
        }
    }

    async fn is_listed(&self, store: &impl Store, start: &str, after: Option<&str>, limit: u32) {
        let page = store.list(&prefix(start), after.map(key).as_ref(), limit).await.expect("no failure");
        let all = self
            .rows
            .keys()
            .filter(|name| name.starts_with(start) && after.is_none_or(|after| **name > after));
        let all: Vec<&str> = all.copied().collect();
        let expected: Vec<&str> = all.iter().take(limit as usize).copied().collect();
        assert_eq!(page.keys.iter().map(|key| key.as_str()).collect::<Vec<_>>(), expected);
        let next = (all.len() > expected.len()).then(|| key(expected[expected.len() - 1]));
        assert_eq!(page.next_after, next);
    }
}

fn run(cases: u32, length: usize, history: impl Fn(Vec<Op>)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let drawn = prop::collection::vec(any_op(), 1..length);
    TestRunner::new(config)
        .run(&drawn, |ops| {
            history(ops);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn the_store_in_memory_answers_what_the_model_answers() {
    let runtime = runtime();
    run(3_000, 60, |ops| {
        runtime.block_on(async {
            let (store, mut model) = (MemoryStore::default(), Model::default());
            for op in &ops {
                model.step(&store, op).await;
            }
        });
    });
}

#[test]
fn the_store_in_postgresql_answers_what_the_model_answers() {
    let runtime = runtime();
    let db = runtime.block_on(Db::with_table());
    let store = runtime.block_on(async { db.store() });
    run(40, 80, |ops| {
        runtime.block_on(async {
            db.execute("DELETE FROM test.kv").await;
            let mut model = Model::default();
            for op in &ops {
                model.step(&store, op).await;
            }
        });
    });
}
