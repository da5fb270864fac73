//! Versions rise.

use state::{Delete, Patch, Store, Version, VersionCondition, Write, WriteConditions};
use tokio::task::JoinSet;

use super::expecting;
use crate::support::{get, key, put, value};

on_both_stores! {
    versions_rise_with_every_write_and_never_repeat_after_a_deletion
    versions_of_a_key_rise_in_the_order_of_its_writes
}

async fn versions_rise_with_every_write_and_never_repeat_after_a_deletion(store: impl Store) {
    let mut last = Version(0);
    for _ in 0..20 {
        let put = put(&store, "k", r#"{"status":"a"}"#).await;
        assert!(put > last);
        let patched = store.patch(&key("k"), &value("{}"), &WriteConditions::default()).await;
        let Patch::Written(Write::Applied(patched)) = patched.expect("no failure") else {
            panic!("not patched")
        };
        assert!(patched > put);
        let condition = expecting(VersionCondition::Is(Some(patched)));
        let written = store.put(&key("k"), &value("1"), &condition).await.expect("no failure");
        let Write::Applied(swapped) = written else { panic!("not written") };
        assert!(swapped > patched);
        assert_eq!(get(&store, "k").await.version, swapped);
        assert_eq!(
            store.delete(&key("k"), VersionCondition::Any).await.expect("no failure"),
            Delete::Applied
        );
        last = swapped;
    }
}

async fn versions_of_a_key_rise_in_the_order_of_its_writes(store: impl Store) {
    let store = std::sync::Arc::new(store);
    put(&*store, "k", "0").await;
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            let mut written = Vec::new();
            for number in 0..40 {
                if writer % 2 == 0 {
                    written.push(put(&*store, "k", &number.to_string()).await);
                } else {
                    let done = store.put(&key("k"), &value("1"), &expecting(VersionCondition::Exists)).await;
                    let Write::Applied(version) = done.expect("no failure") else { panic!("it exists") };
                    written.push(version);
                }
                // A read after a write is not older than the write.
                assert!(get(&*store, "k").await.version >= written[number]);
            }
            written
        });
    }
    let mut all: Vec<Version> = writers.join_all().await.into_iter().flatten().collect();
    all.sort();
    assert_eq!(
        get(&*store, "k").await.version,
        *all.last().expect("some"),
        "the last write has the highest version"
    );
    all.dedup();
    assert_eq!(all.len(), 8 * 40, "no version was used twice");
}
