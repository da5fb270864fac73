//! What the console is built on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ambient::Clock;
use domain::catalog::Catalog;
use domain::operations::Budgets;
use domain::ports::{ActivityQueries, LeaderLookup, Operations, Queries, SessionStore, StreamQueries};
use http_server::TrustedProxies;
use http_server::tokens::Tokens;
use idempotency::{Idempotency, Store};

use crate::attempts::Attempts;
use crate::leaderless::Leaderless;

/// The kinds of ports that a console is built on.
pub trait Ports: Send + Sync + 'static {
    /// Reads what became of notifications.
    type Queries: Queries + 'static;
    /// Changes what an operator may change.
    type Operations: Operations + 'static;
    /// Reads the intents stream.
    type Stream: StreamQueries + 'static;
    /// Knows who leads.
    type Leader: LeaderLookup + 'static;
    /// Knows what the replicas did lately.
    type Activity: ActivityQueries + 'static;
    /// Knows who is signed in.
    type Sessions: SessionStore + 'static;
    /// Keeps the results of forms that change something.
    type Keys: Store;
    /// The time.
    type Clock: Clock + 'static;
}

/// The console.
pub struct Console<P: Ports> {
    /// Reads what became of notifications.
    pub queries: P::Queries,
    /// Changes what an operator may change.
    pub operations: P::Operations,
    /// Reads the intents stream.
    pub stream: P::Stream,
    /// Knows who leads.
    pub leader: P::Leader,
    /// Knows what the replicas did lately.
    pub activity: P::Activity,
    /// Knows who is signed in.
    pub sessions: P::Sessions,
    /// Carries out a form once that is sent more than once.
    pub keys: Idempotency<P::Keys>,
    /// The time, for changes and explanations.
    pub clock: P::Clock,
    /// The tokens in force: one with the role `operator` opens the console.
    pub tokens: Tokens,
    /// Makes the ids of sessions.
    pub ids: Arc<dyn ambient::Tokens>,
    /// Who sent a request that came through proxies.
    pub proxies: TrustedProxies,
    /// The failed attempts to sign in on this replica.
    pub attempts: Attempts,
    /// What this replica has seen of who leads.
    pub leaderless: Leaderless,
    /// What configuration says.
    pub settings: ConsoleSettings,
}

impl<P: Ports> fmt::Debug for Console<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What configuration says to the console.
#[derive(Clone, Debug)]
pub struct ConsoleSettings {
    /// Which type may go to whom.
    pub catalog: Arc<Catalog>,
    /// The intents stream, whose checkpoint is read.
    pub stream: String,
    /// The retry budgets of routes that are replayed.
    pub budgets: Budgets,
    /// The version of the service.
    pub version: &'static str,
    /// How long a page may take. Less than the listener's request timeout, so that what takes longer is
    /// answered with a page.
    pub time_limit: Duration,
}
