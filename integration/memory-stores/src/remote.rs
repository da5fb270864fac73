//! A store at the other end of a link: it has the ports of the store, and each call goes over the link.

use std::ops::Deref;
use std::sync::Arc;

use domain::ports::StoreError;

use super::Script;

mod console;
mod directory;
mod durable;
mod election;
mod redis;

/// The way from a caller to a store: it can delay a call, make it fail, and lose its response.
pub trait Link: Send + Sync + 'static {
    /// Runs a call of the store, whose future is `response`. The future does its work when it is awaited.
    /// `elements` has a text for each element of a batch. `succeeded` returns true if the value means that
    /// the call did what it was for.
    fn call<T: Send>(
        &self,
        operation: &'static str,
        elements: Vec<String>,
        response: impl Future<Output = Result<T, StoreError>> + Send,
        succeeded: impl FnOnce(&T) -> bool + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send;
}

/// A store at the other end of a link. Clones share the store. The store's own methods are available too,
/// without the link.
#[derive(Debug)]
pub struct Remote<S, L> {
    store: Arc<S>,
    link: L,
}

/// A store behind a script.
pub type Scripted<S> = Remote<S, Script>;

impl<S> Scripted<S> {
    /// Puts `script` in front of `store`.
    pub fn new(store: S, script: &Script) -> Self {
        Self::over(Arc::new(store), script.clone())
    }
}

impl<S, L> Remote<S, L> {
    /// Puts `store` at the other end of `link`.
    pub fn over(store: Arc<S>, link: L) -> Self {
        Self { store, link }
    }
}

impl<S, L: Link> Remote<S, L> {
    async fn call<T: Send>(
        &self,
        operation: &'static str,
        elements: Vec<String>,
        response: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.link.call(operation, elements, response, |_| true).await
    }
}

impl<S, L: Clone> Clone for Remote<S, L> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), link: self.link.clone() }
    }
}

impl<S, L> Deref for Remote<S, L> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.store
    }
}

/// A text for each element.
fn texts<T: ToString>(elements: impl IntoIterator<Item = T>) -> Vec<String> {
    elements.into_iter().map(|element| element.to_string()).collect()
}
