//! The election behind a link.

use domain::ports::{Election, Fence, StoreError};

use super::{Link, Remote, texts};

impl<S: Election, L: Link> Election for Remote<S, L> {
    type Term = S::Term;

    async fn campaign(&self) -> Result<Option<S::Term>, StoreError> {
        self.call("campaign", Vec::new(), self.store.campaign()).await
    }

    async fn leader_change(&self) {
        self.store.leader_change().await;
    }

    async fn raise_fence(&self, floor: Fence) -> Result<(), StoreError> {
        self.call("raise_fence", texts([floor]), self.store.raise_fence(floor)).await
    }
}
