//! What the API is built on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use domain::catalog::Catalog;
use domain::operations::Budgets;
use domain::ports::{LeaderLookup, Operations, Queries, ReceiptStore, StreamQueries, Submissions};
use idempotency::{Idempotency, Store};

/// The kinds of ports that an API is built on.
pub trait Ports: Send + Sync + 'static {
    /// Accepts intents.
    type Submissions: Submissions + 'static;
    /// Reads what became of them.
    type Queries: Queries + 'static;
    /// Changes what an operator may change.
    type Operations: Operations + 'static;
    /// Takes what consumers report.
    type Receipts: ReceiptStore + 'static;
    /// Reads the intents stream.
    type Stream: StreamQueries + 'static;
    /// Knows who leads.
    type Leader: LeaderLookup + 'static;
    /// Keeps answers to requests that are guarded as a whole.
    type Keys: Store;
    /// The time.
    type Clock: Clock + 'static;
}

/// Is told how many reports of a request had which outcome: `recorded`, `stale`, `unknown_route` or
/// `invalid`.
pub type ReceiptCounter = Arc<dyn Fn(&'static str, u64) + Send + Sync>;

/// The API.
pub struct Api<P: Ports> {
    /// Accepts intents.
    pub submissions: P::Submissions,
    /// Reads what became of them.
    pub queries: P::Queries,
    /// Changes what an operator may change.
    pub operations: P::Operations,
    /// Takes what consumers report.
    pub receipts: P::Receipts,
    /// Counts what became of their reports.
    pub count_receipts: ReceiptCounter,
    /// Reads the intents stream.
    pub stream: P::Stream,
    /// Knows who leads.
    pub leader: P::Leader,
    /// Guards batches and operators' changes.
    pub keys: Idempotency<P::Keys>,
    /// The time, for schedules and explanations.
    pub clock: P::Clock,
    /// What configuration says.
    pub settings: ApiSettings,
}

impl<P: Ports> fmt::Debug for Api<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What configuration says to the API.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// Which type may go to whom.
    pub catalog: Arc<Catalog>,
    /// The intents stream, whose checkpoint is read.
    pub stream: String,
    /// The retry budgets of routes that are replayed.
    pub budgets: Budgets,
    /// The largest body of any other request, in bytes: the listener's limit.
    pub max_body_bytes: usize,
    /// The largest body of a batch, in bytes.
    pub max_batch_body_bytes: usize,
    /// How long the elements of a batch may take in all. Less than the listener's request timeout, so that an
    /// answer with what was decided is sent before that.
    pub batch_timeout: Duration,
    /// The version of the service.
    pub version: &'static str,
}
