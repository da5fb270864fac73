//! The ports and the settings of the console.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use domain::catalog::Catalog;
use domain::operations::Budgets;
use domain::ports::{
    ActivityQueries, Erasures, Finder, HoldChanges, LeaderLookup, Operations, Queries, Resubmitter,
    SessionStore, StreamQueries,
};
use http_server::TrustedProxies;
use http_server::tokens::AccessTokens;
use idempotency::{Idempotency, Store};

use crate::attempts::Attempts;
use domain::query::Leaderless;

/// The types of the ports of a console.
pub trait Ports: Send + Sync + 'static {
    /// Reads the outcomes of notifications.
    type Queries: Queries + 'static;
    /// Applies the changes that operators may make.
    type Operations: Operations + 'static;
    /// Holds and releases.
    type Holds: HoldChanges + 'static;
    /// Erases users.
    type Erasures: Erasures + 'static;
    /// Reads the intents stream.
    type Stream: StreamQueries + 'static;
    /// Looks up the leader.
    type Leader: LeaderLookup + 'static;
    /// Finds by any id.
    type Finder: Finder + 'static;
    /// Resubmits malformed intents.
    type Resubmitter: Resubmitter + 'static;
    /// Reads the recent activity of the replicas.
    type Activity: ActivityQueries + 'static;
    /// Stores the sessions.
    type Sessions: SessionStore + 'static;
    /// Stores the results of forms that change something.
    type Keys: Store;
    /// The clock.
    type Clock: Clock + 'static;
}

/// The console.
pub struct Console<P: Ports> {
    /// Reads the outcomes of notifications.
    pub queries: P::Queries,
    /// Applies the changes that operators may make.
    pub operations: P::Operations,
    /// Holds and releases.
    pub holds: P::Holds,
    /// Erases users.
    pub erasures: P::Erasures,
    /// Reads the intents stream.
    pub stream: P::Stream,
    /// Looks up the leader.
    pub leader: P::Leader,
    /// Finds by any id.
    pub finder: P::Finder,
    /// Resubmits malformed intents.
    pub resubmitter: P::Resubmitter,
    /// Reads the recent activity of the replicas.
    pub activity: P::Activity,
    /// Stores the sessions.
    pub sessions: P::Sessions,
    /// The idempotency keys of forms: a form that is sent several times is carried out once.
    pub keys: Idempotency<P::Keys>,
    /// The clock, for changes and explanations.
    pub clock: P::Clock,
    /// The tokens in force; a token with a role opens the console.
    pub tokens: AccessTokens,
    /// Generates the ids of sessions.
    pub ids: Arc<dyn ambient::Tokens>,
    /// The trusted proxies, for the client address of a request.
    pub proxies: TrustedProxies,
    /// The failed attempts to sign in on this replica.
    pub attempts: Attempts,
    /// The observations of this replica about the leader.
    pub leaderless: Leaderless,
    /// The configuration.
    pub settings: ConsoleSettings,
}

impl<P: Ports> fmt::Debug for Console<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Configuration of the console.
#[derive(Clone, Debug)]
pub struct ConsoleSettings {
    /// The types, with their producers and recipients.
    pub catalog: Arc<Catalog>,
    /// The intents stream, whose checkpoint is read.
    pub stream: String,
    /// The retry budgets of routes that are replayed.
    pub budgets: Budgets,
    /// The time limit of a page. It is less than the listener's request timeout, so that a request that takes
    /// longer gets a page as response.
    pub time_limit: Duration,
}
