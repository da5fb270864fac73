//! A store behind a script: it has the ports of the store, and the script runs before each call.

use std::ops::Deref;
use std::sync::Arc;

use domain::ports::StoreError;

use super::Script;

mod console;
mod durable;
mod redis;

/// A store behind a script. Clones share it. The store's own methods are available too, without the script.
#[derive(Debug)]
pub struct Scripted<S> {
    store: Arc<S>,
    script: Script,
}

impl<S> Scripted<S> {
    /// Puts `script` in front of `store`.
    pub fn new(store: S, script: &Script) -> Self {
        Self { store: Arc::new(store), script: script.clone() }
    }

    /// Runs a call of the store, whose future is `answer`, after the script. The future does its work when it
    /// is awaited.
    async fn call<T>(
        &self,
        operation: &'static str,
        elements: Vec<String>,
        answer: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let place = self.script.begin(operation, elements).await?;
        let answer = answer.await?;
        self.script.succeeded(place);
        Ok(answer)
    }
}

impl<S> Clone for Scripted<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), script: self.script.clone() }
    }
}

impl<S> Deref for Scripted<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.store
    }
}

/// A text for each element.
fn texts<T: ToString>(elements: impl IntoIterator<Item = T>) -> Vec<String> {
    elements.into_iter().map(|element| element.to_string()).collect()
}
