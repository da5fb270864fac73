//! The ports and the settings of the API.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use domain::catalog::Catalog;
use domain::operations::Budgets;
use domain::ports::{
    ActivityQueries, Erasures, Finder, HoldChanges, LeaderLookup, Operations, Queries, ReceiptStore,
    Resubmitter, StreamQueries, Submissions,
};
use domain::query::Leaderless;
use idempotency::{Idempotency, Store};

/// The types of the ports of an API.
pub trait Ports: Send + Sync + 'static {
    /// Accepts intents.
    type Submissions: Submissions + 'static;
    /// Reads the outcomes of intents.
    type Queries: Queries + ActivityQueries + 'static;
    /// Applies the changes that operators may make.
    type Operations: Operations + 'static;
    /// Holds and releases.
    type Holds: HoldChanges + 'static;
    /// Erases users.
    type Erasures: Erasures + 'static;
    /// Records consumers' reports.
    type Receipts: ReceiptStore + 'static;
    /// Reads the intents stream.
    type Stream: StreamQueries + 'static;
    /// Looks up the leader.
    type Leader: LeaderLookup + 'static;
    /// Finds by any id.
    type Finder: Finder + 'static;
    /// Resubmits malformed intents.
    type Resubmitter: Resubmitter + 'static;
    /// Stores responses to requests that are guarded as a whole.
    type Keys: Store;
    /// The clock.
    type Clock: Clock + 'static;
}

/// Counts the reports of a request by outcome: `recorded`, `stale`, `unknown_route` or `invalid`.
pub type ReceiptCounter = Arc<dyn Fn(&'static str, u64) + Send + Sync>;

/// The API.
pub struct Api<P: Ports> {
    /// Accepts intents.
    pub submissions: P::Submissions,
    /// Reads the outcomes of intents.
    pub queries: P::Queries,
    /// Applies the changes that operators may make.
    pub operations: P::Operations,
    /// Holds and releases.
    pub holds: P::Holds,
    /// Erases users.
    pub erasures: P::Erasures,
    /// Records consumers' reports.
    pub receipts: P::Receipts,
    /// Counts the outcomes of reports.
    pub count_receipts: ReceiptCounter,
    /// Reads the intents stream.
    pub stream: P::Stream,
    /// Looks up the leader.
    pub leader: P::Leader,
    /// The observations of the leader by this replica.
    pub leaderless: Leaderless,
    /// Finds by any id.
    pub finder: P::Finder,
    /// Resubmits malformed intents.
    pub resubmitter: P::Resubmitter,
    /// Guards batches and operators' changes.
    pub keys: Idempotency<P::Keys>,
    /// The clock, for schedules and explanations.
    pub clock: P::Clock,
    /// The configuration.
    pub settings: ApiSettings,
}

impl<P: Ports> fmt::Debug for Api<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Configuration of the API.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// The types, with their producers and recipients.
    pub catalog: Arc<Catalog>,
    /// The intents stream, whose checkpoint is read.
    pub stream: String,
    /// The retry budgets of routes that are replayed.
    pub budgets: Budgets,
    /// The largest body of any other request, in bytes: the listener's limit.
    pub max_body_bytes: usize,
    /// The largest body of a batch, in bytes.
    pub max_batch_body_bytes: usize,
    /// The time limit for all elements of a batch. It is less than the listener's request timeout, so that a
    /// response with the results so far is sent before that.
    pub batch_timeout: Duration,
    /// The version of the service.
    pub version: &'static str,
}
