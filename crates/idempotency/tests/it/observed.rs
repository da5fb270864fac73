//! The information that observers receive, and that they do not.

use std::sync::{Arc, Mutex};

use idempotency::{KeyEvent, KeyObserver, LockTtl, MemoryStore, ObservedStore, Store};

use crate::support::{LOCK, TICK, completion, request};

#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

impl KeyObserver for Recorder {
    fn observe(&self, event: &KeyEvent<'_>) {
        self.0.lock().expect("not poisoned").push(format!("{event:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn each_outcome_is_told_and_no_key() {
    let recorder = Arc::new(Recorder::default());
    let store = ObservedStore::new(MemoryStore::new(2), recorder.clone());
    let first = request("secret", "f");
    let claims = store.claim(&[first.clone(), request("secret", "f")]).await;
    assert_eq!(claims.expect("no failure").len(), 2);
    let ids = [first.id.clone()];
    let completed = store.complete(&[completion(&first.id, 200, b"")]).await;
    let fenced = store.abandon(&ids).await;
    let extended = store.extend(&ids, LockTtl::default()).await;
    assert!(completed.is_ok() && fenced.is_ok() && extended.is_ok());
    assert!(store.claim(&["a", "b"].map(|key| request(key, "f"))).await.is_err(), "it is full");
    store.claim(&[request("a", "f")]).await.expect("no failure");
    tokio::time::advance(LOCK + TICK).await;
    for swept in [1, 0] {
        assert_eq!(store.sweep(10).await.expect("no failure"), swept);
    }
    let told = recorder.0.lock().expect("not poisoned");
    let expected = [
        "Claim, outcome: Claim(New), keys: 1",
        "Claim, outcome: Claim(Pending",
        "Complete, outcome: Guarded(Applied)",
        "Abandon, outcome: Guarded(Fenced)",
        "Extend, outcome: Guarded(Fenced)",
        "Claim, outcome: Failed(Full { max_entries: 2 }), keys: 2",
        "Claim, outcome: Claim(New), keys: 1",
        "Sweep, outcome: Swept, keys: 1",
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for (event, expected) in told.iter().zip(expected) {
        assert!(event.contains(expected) && !event.contains("secret"), "{event} instead of {expected}");
    }
}

#[tokio::test]
async fn an_observer_that_panics_changes_no_outcome() {
    struct Panics;
    impl KeyObserver for Panics {
        fn observe(&self, _: &KeyEvent<'_>) {
            panic!("an observer's own fault");
        }
    }
    let store = ObservedStore::new(MemoryStore::new(1), Arc::new(Panics));
    let claims = store.claim(&[request("k", "f")]).await.expect("no failure");
    assert_eq!(claims, [idempotency::Claim::New]);
}
