//! Scripted effects on calls before they reach a store, and a record of the calls.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::ports::StoreError;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::{Link, lock};

/// One call of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The method.
    pub operation: &'static str,
    /// The arguments: for a batch, a text for each element; for a page, its length.
    pub elements: Vec<String>,
    /// The time of the call, by the runtime's clock.
    pub at: Instant,
    /// True if the call succeeded; for `accept`, if it committed. False while it runs.
    pub succeeded: bool,
}

/// The effect of the script on a call.
#[derive(Debug)]
pub enum Effect {
    /// The call reaches the store.
    Pass,
    /// The call reaches the store after this time.
    Delay(Duration),
    /// The call does not reach the store and fails.
    Fail(StoreError),
    /// The call does not reach the store and never returns.
    Hang,
}

type CallRule = Box<dyn FnMut(&Call) -> Effect + Send>;

/// A script for the calls of any number of stores. Clones share it. By default every call passes.
#[derive(Clone, Default)]
pub struct Script(Arc<SharedScript>);

#[derive(Default)]
struct SharedScript {
    state: Mutex<ScriptState>,
    called: Notify,
}

#[derive(Default)]
struct ScriptState {
    calls: Vec<Call>,
    failures: HashMap<&'static str, VecDeque<StoreError>>,
    rules: HashMap<&'static str, CallRule>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("calls", &self.calls().len()).finish_non_exhaustive()
    }
}

impl Script {
    /// Makes one call of `operation` fail with `error`: the next one after earlier scripted failures.
    pub fn fail(&self, operation: &'static str, error: StoreError) {
        lock(&self.0.state).failures.entry(operation).or_default().push_back(error);
    }

    /// Applies `rule` to each call of `operation` from now on, replacing the previous rule. The rule may
    /// change the data of a store but must not use the script.
    pub fn on(&self, operation: &'static str, rule: impl FnMut(&Call) -> Effect + Send + 'static) {
        lock(&self.0.state).rules.insert(operation, Box::new(rule));
    }

    /// Removes the rule of `operation`.
    pub fn off(&self, operation: &'static str) {
        lock(&self.0.state).rules.remove(operation);
    }

    /// All calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.0.state).calls.clone()
    }

    /// The calls of `operation` so far, in order.
    pub fn calls_of(&self, operation: &str) -> Vec<Call> {
        let state = lock(&self.0.state);
        state.calls.iter().filter(|call| call.operation == operation).cloned().collect()
    }

    /// The number of calls of `operation` so far.
    pub fn count(&self, operation: &str) -> usize {
        lock(&self.0.state).calls.iter().filter(|call| call.operation == operation).count()
    }

    /// Waits until `done` returns true. It is called again after each call, once that call's task yields.
    ///
    /// # Panics
    ///
    /// Panics after `bound`.
    pub async fn until(&self, bound: Duration, done: impl Fn() -> bool) {
        let waiting = async {
            loop {
                let next = self.0.called.notified();
                if done() {
                    return;
                }
                next.await;
            }
        };
        assert!(timeout(bound, waiting).await.is_ok(), "it does not get there within {bound:?}");
    }

    /// Records a call and applies the script to it. Returns its place in the record.
    async fn begin(&self, operation: &'static str, elements: Vec<String>) -> Result<usize, StoreError> {
        let call = Call { operation, elements, at: Instant::now(), succeeded: false };
        let (place, effect) = {
            let state = &mut *lock(&self.0.state);
            state.calls.push(call.clone());
            let failure = state.failures.get_mut(operation).and_then(VecDeque::pop_front);
            let effect = match (failure, state.rules.get_mut(operation)) {
                (Some(error), _) => Effect::Fail(error),
                (None, Some(rule)) => rule(&call),
                (None, None) => Effect::Pass,
            };
            (state.calls.len() - 1, effect)
        };
        self.0.called.notify_waiters();
        match effect {
            Effect::Pass => {}
            Effect::Delay(time) => sleep(time).await,
            Effect::Fail(error) => return Err(error),
            Effect::Hang => pending().await,
        }
        Ok(place)
    }
}

impl Link for Script {
    async fn call<T: Send>(
        &self,
        operation: &'static str,
        elements: Vec<String>,
        response: impl Future<Output = Result<T, StoreError>> + Send,
        succeeded: impl FnOnce(&T) -> bool + Send,
    ) -> Result<T, StoreError> {
        let place = self.begin(operation, elements).await?;
        let value = response.await?;
        if succeeded(&value) {
            lock(&self.0.state).calls[place].succeeded = true;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use domain::ports::Election;

    use super::*;
    use crate::{MemoryElection, Scripted};

    fn down() -> StoreError {
        StoreError::Unavailable { operation: "campaign", source: "down".into() }
    }

    #[tokio::test]
    async fn a_call_that_fails_does_not_reach_the_store_and_is_recorded_as_failed() {
        let script = Script::default();
        let election = Scripted::new(MemoryElection::default(), &script);
        script.fail("campaign", down());
        election.campaign().await.expect_err("the script says so");
        assert!(election.campaign().await.expect("the next one passes").is_some());
        let succeeded: Vec<bool> = script.calls_of("campaign").iter().map(|call| call.succeeded).collect();
        assert_eq!(succeeded, [false, true]);
    }

    #[tokio::test]
    async fn a_rule_holds_until_it_is_taken_off_and_a_single_failure_goes_first() {
        let script = Script::default();
        let election = Scripted::new(MemoryElection::default(), &script);
        let mut asked = 0;
        script.on("campaign", move |_| {
            asked += 1;
            if asked == 1 { Effect::Pass } else { Effect::Hang }
        });
        script.fail("campaign", down());
        election.campaign().await.expect_err("the single failure");
        assert!(election.campaign().await.expect("the rule lets it pass").is_some());
        let hung = timeout(Duration::from_millis(1), election.campaign()).await;
        assert!(hung.is_err(), "the rule lets it hang");
        script.off("campaign");
        assert!(election.campaign().await.expect("it passes").is_none(), "the first winner still leads");
        assert_eq!(script.count("campaign"), 4);
    }
}
