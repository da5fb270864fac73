//! Running a handler once when clients disconnect, handlers hang, and the store fails.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use futures_util::FutureExt;
use idempotency::{
    Claim, ClaimId, ClaimRequest, CompletionRequest, Guarded, Idempotency, IdempotencyError,
    IdempotencySettings, KeyLookup, KeyedRequest, LockTtl, MemoryStore, Run, Store,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::support::{LOCK, request, until};

/// A store that fails as the test requests.
struct Unreliable {
    store: Arc<MemoryStore>,
    /// True if a claim fails at once, and reaches the store a second later.
    delays_claims: AtomicBool,
    /// True if claims take effect, and their responses are lost.
    loses_claims: AtomicBool,
    refuses_completions: AtomicUsize,
    loses_completions: AtomicBool,
    refuses_abandons: AtomicBool,
}

const FAILURE: Duration = Duration::from_secs(1);

fn failed<T>() -> Result<T, IdempotencyError> {
    Err(IdempotencyError::TimedOut(FAILURE))
}

impl Store for Unreliable {
    async fn lookup(&self, keys: &[KeyLookup]) -> Result<Vec<Option<Claim>>, IdempotencyError> {
        self.store.lookup(keys).await
    }

    async fn claim(&self, requests: &[ClaimRequest]) -> Result<Vec<Claim>, IdempotencyError> {
        if self.delays_claims.load(Ordering::SeqCst) {
            let (store, requests) = (self.store.clone(), requests.to_vec());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                store.claim(&requests).await
            });
            return failed();
        }
        let claims = self.store.claim(requests).await;
        if self.loses_claims.load(Ordering::SeqCst) { failed() } else { claims }
    }

    async fn complete(&self, completions: &[CompletionRequest]) -> Result<Vec<Guarded>, IdempotencyError> {
        let refuse = |left: usize| left.checked_sub(1);
        if self.refuses_completions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
            return failed();
        }
        let outcomes = self.store.complete(completions).await;
        if self.loses_completions.swap(false, Ordering::SeqCst) { failed() } else { outcomes }
    }

    async fn abandon(&self, ids: &[ClaimId]) -> Result<Vec<Guarded>, IdempotencyError> {
        if self.refuses_abandons.load(Ordering::SeqCst) { failed() } else { self.store.abandon(ids).await }
    }

    async fn extend(&self, ids: &[ClaimId], lock_ttl: LockTtl) -> Result<Vec<Guarded>, IdempotencyError> {
        self.store.extend(ids, lock_ttl).await
    }

    async fn sweep(&self, limit: u64) -> Result<u64, IdempotencyError> {
        self.store.sweep(limit).await
    }
}

fn reliable() -> Unreliable {
    Unreliable {
        store: Arc::new(MemoryStore::new(100)),
        delays_claims: AtomicBool::default(),
        loses_claims: AtomicBool::default(),
        refuses_completions: AtomicUsize::default(),
        loses_completions: AtomicBool::default(),
        refuses_abandons: AtomicBool::default(),
    }
}

fn idempotency(store: &Arc<Unreliable>, settings: IdempotencySettings) -> Idempotency<Unreliable> {
    Idempotency::new(store.clone(), settings).expect("valid settings")
}

fn of(key: &str) -> KeyedRequest {
    let ClaimRequest { id, fingerprint, .. } = request(key, "f");
    KeyedRequest { owner: id.owner, key: id.key, fingerprint }
}

async fn created() -> Result<Response<Body>, Infallible> {
    Ok(Response::builder().status(StatusCode::CREATED).body(Body::from("done")).expect("a response"))
}

async fn run(once: &Idempotency<Unreliable>) -> Run {
    once.run_once(of("k"), created).await.expect("infallible")
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_runs_nothing_and_leaves_the_key_free_once_the_store_is_back() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    store.loses_claims.store(true, Ordering::SeqCst);
    store.refuses_abandons.store(true, Ordering::SeqCst);
    let ran = Arc::new(AtomicBool::new(false));
    let handler = {
        let ran = ran.clone();
        || async move {
            ran.store(true, Ordering::SeqCst);
            created().await
        }
    };
    let outcome = once.run_once(of("k"), handler).await.expect("infallible");
    assert!(!ran.load(Ordering::SeqCst), "the handler must not run");
    assert!(matches!(outcome, Run::Unavailable(IdempotencyError::TimedOut(FAILURE))), "{outcome:?}");
    store.loses_claims.store(false, Ordering::SeqCst);
    assert!(matches!(run(&once).await, Run::InProgress), "the claim whose answer was lost is still there");
    store.refuses_abandons.store(false, Ordering::SeqCst);
    let begin = Instant::now();
    once.tasks().close();
    once.tasks().wait().await;
    assert!(begin.elapsed() <= Duration::from_secs(1), "it is abandoned soon after");
    assert!(matches!(run(&once).await, Run::Handled(_)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_reaches_the_store_after_it_was_abandoned_is_abandoned_again() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    store.delays_claims.store(true, Ordering::SeqCst);
    assert!(matches!(run(&once).await, Run::Unavailable(_)));
    store.delays_claims.store(false, Ordering::SeqCst);
    once.tasks().close();
    timeout(Duration::from_secs(3), once.tasks().wait()).await.expect("long before the lock TTL has passed");
    assert!(matches!(run(&once).await, Run::Handled(_)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_abandoned_is_forgotten_when_its_lock_ttl_has_passed() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    store.loses_claims.store(true, Ordering::SeqCst);
    store.refuses_abandons.store(true, Ordering::SeqCst);
    assert!(matches!(run(&once).await, Run::Unavailable(_)));
    let begin = Instant::now();
    once.tasks().close();
    once.tasks().wait().await;
    assert!((LOCK..LOCK + Duration::from_secs(2)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_client_gets_its_answer_though_it_cannot_be_stored_and_the_key_stays_blocked() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    store.refuses_completions.store(usize::MAX, Ordering::SeqCst);
    let begin = Instant::now();
    let Run::Handled(response) = run(&once).await else { panic!("the handler ran") };
    assert_eq!(response.status(), StatusCode::CREATED);
    assert!(begin.elapsed() <= IdempotencySettings::default().store_timeout);
    assert!(matches!(run(&once).await, Run::InProgress), "the request was processed: no repeat runs yet");
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_completion_is_tried_again_until_it_is_stored() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    store.refuses_completions.store(3, Ordering::SeqCst);
    store.loses_completions.store(true, Ordering::SeqCst);
    assert!(matches!(run(&once).await, Run::Handled(_)));
    assert!(matches!(run(&once).await, Run::Replayed(_)));
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_handler_slower_than_the_store_timeout_is_stored() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    let slow = || async {
        tokio::time::sleep(IdempotencySettings::default().store_timeout * 2).await;
        created().await
    };
    assert!(matches!(once.run_once(of("k"), slow).await, Ok(Run::Handled(_))));
    assert!(matches!(run(&once).await, Run::Replayed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_client_has_gone_is_processed_and_stored() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let gate = gate.clone();
        || async move {
            drop(gate.acquire_owned().await);
            created().await
        }
    };
    let gone = timeout(Duration::from_secs(1), once.run_once(of("k"), handler)).await;
    assert!(gone.is_err(), "the timeout around it dropped it");
    assert!(matches!(run(&once).await, Run::InProgress));
    gate.add_permits(1);
    until("the end of the task", async || once.tasks().is_empty()).await;
    assert!(matches!(run(&once).await, Run::Replayed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_its_handler_fails_frees_its_key() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let gate = gate.clone();
        || async move {
            drop(gate.acquire_owned().await);
            Err::<Response<Body>, _>("failed")
        }
    };
    let gone = timeout(Duration::from_secs(1), once.run_once(of("k"), handler)).await;
    assert!(gone.is_err());
    gate.add_permits(1);
    until("the end of the task", async || once.tasks().is_empty()).await;
    assert!(matches!(run(&once).await, Run::Handled(_)));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_dropped_after_its_time_and_frees_its_key() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    let begin = Instant::now();
    let hangs = std::future::pending::<Result<Response<Body>, Infallible>>;
    let outcome = once.run_once(of("k"), hangs).await.expect("infallible");
    assert_eq!(begin.elapsed().as_secs(), IdempotencySettings::default().handler_timeout.as_secs());
    assert!(matches!(outcome, Run::Unavailable(IdempotencyError::HandlerTimedOut(_))), "{outcome:?}");
    assert!(matches!(run(&once).await, Run::Handled(_)));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_handler_is_given_back_and_frees_the_key() {
    let store = Arc::new(reliable());
    let once = idempotency(&store, IdempotencySettings::default());
    // The first abandon fails, so that it runs in the background.
    store.refuses_abandons.store(true, Ordering::SeqCst);
    let failing = || async { Err::<Response<Body>, _>("failed") };
    assert_eq!(once.run_once(of("k"), failing).await.expect_err("its error"), "failed");
    store.refuses_abandons.store(false, Ordering::SeqCst);
    once.tasks().close();
    once.tasks().wait().await;
    assert!(matches!(run(&once).await, Run::Handled(_)));
}

// I-15
#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_frees_the_key() {
    let store = Arc::new(reliable());
    let (settings, tokens) = (IdempotencySettings::default(), Arc::new(ambient::RandomTokens));
    let rule = |_: &_, _: &_| panic!("the rule's own fault");
    let panics = Idempotency::build(store.clone(), settings, rule, tokens).expect("valid settings");
    let sent = std::panic::AssertUnwindSafe(run(&panics)).catch_unwind().await;
    assert!(sent.is_err(), "the panic is resumed");
    assert!(matches!(run(&idempotency(&store, settings)).await, Run::Handled(_)));
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_may_be_in_progress_are_refused() {
    let store = Arc::new(reliable());
    let once =
        idempotency(&store, IdempotencySettings { max_concurrent: 1, ..IdempotencySettings::default() });
    let hangs = std::future::pending::<Result<Response<Body>, Infallible>>;
    let gone = timeout(Duration::from_secs(1), once.run_once(of("hangs"), hangs)).await;
    assert!(gone.is_err());
    let refused = run(&once).await;
    assert!(
        matches!(refused, Run::Unavailable(IdempotencyError::TooManyRequests { max_concurrent: 1 })),
        "the one whose client has gone counts: {refused:?}"
    );
    once.tasks().close();
    once.tasks().wait().await;
    assert!(matches!(run(&once).await, Run::Handled(_)));
}
