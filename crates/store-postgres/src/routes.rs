//! The state of routes: due routes (`due.rs`), completions (`complete.rs`), and counts of failures
//! (`failures.rs`).

pub(crate) mod complete;
pub(crate) mod due;
pub(crate) mod failures;

use std::collections::HashMap;

use ambient::Timestamp;
use domain::outcome::Acceptance;
use domain::ports::{
    Completion, DueCursor, DueOrder, DuePage, Failed, FailureCounts, Published, RouteStore, RowLocks,
    StoreError,
};
use domain::route::{Channel, NewRoute, RouteKey, RouteStatus, Start};
use pg::BoundStatement;
use pg::parameter::{self, Parameter};

use crate::PgStore;

impl RouteStore for PgStore {
    async fn list_due_routes(
        &self,
        channel: Channel,
        order: DueOrder,
        now: Timestamp,
        after: Option<&DueCursor>,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        self.due_page(channel, order, now, after, limit).await
    }

    async fn next_due(&self) -> Result<HashMap<Channel, Timestamp>, StoreError> {
        first_due_of_each(&self.session("look for the next due route").await?).await
    }

    async fn count_failures(&self, cap: usize) -> Result<HashMap<Channel, FailureCounts>, StoreError> {
        let session = self.session("count failures").await?;
        failures::counts(&session, cap).await
    }

    async fn count_due_routes(&self, now: Timestamp, cap: usize) -> Result<u64, StoreError> {
        self.due_count(now, cap).await
    }

    async fn get_live_routes(&self, keys: &[&RouteKey]) -> Result<DuePage, StoreError> {
        self.live_page(keys).await
    }

    async fn complete_routes_published(
        &self,
        routes: &[Published],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        self.complete_published(routes, now, locks).await
    }

    async fn complete_routes_failed(
        &self,
        routes: &[Failed],
        now: Timestamp,
        locks: RowLocks,
    ) -> Result<Vec<Completion>, StoreError> {
        self.complete_failed(routes, now, locks).await
    }
}

pub(crate) use due::first_due_of_each;

pg::statements! {
    /// Inserts routes. The arrays are rows of the `SELECT`, not of a function, whose result would be stored
    /// before it is read.
    INSERT = "routes.insert", plan [], "
        INSERT INTO routes (notification_id, route_id, channel, recipient_ref, status, max_attempts, next_attempt_at,
            resolved_email, resolved_locale, last_error_classification, created_at, updated_at, skipped_at)
        SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]),
            unnest($6::bigint[]), unnest($7::timestamptz[]), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]),
            unnest($11::timestamptz[]), unnest($11::timestamptz[]), unnest($12::timestamptz[])";
}

/// Each route repeats the time at which its record was accepted.
pub(crate) fn insert(acceptances: &[&Acceptance]) -> BoundStatement {
    let routes = || acceptances.iter().flat_map(|acceptance| &acceptance.routes);
    let texts = |value: fn(&NewRoute) -> &str| parameter::texts(routes().map(value));
    let accepted = || {
        acceptances.iter().flat_map(|acceptance| {
            acceptance.routes.iter().map(|route| (route, acceptance.record.content.accepted_at))
        })
    };
    let due = routes().map(|route| match route.start {
        Start::Pending { due } => Some(due),
        Start::Skipped(_) => None,
    });
    let skipped = accepted().map(|(route, accepted_at)| match route.start {
        Start::Pending { .. } => None,
        Start::Skipped(_) => Some(accepted_at),
    });
    let status = |route: &NewRoute| match route.start {
        Start::Pending { .. } => RouteStatus::Pending.as_str(),
        Start::Skipped(_) => RouteStatus::Skipped.as_str(),
    };
    let classification = |route: &NewRoute| match route.start {
        Start::Pending { .. } => "",
        Start::Skipped(reason) => reason.as_str(),
    };
    INSERT.bind([
        texts(|route| route.key.notification_id.as_str()),
        texts(|route| &route.key.route_id),
        texts(|route| route.channel.as_str()),
        texts(|route| &route.recipient_ref),
        parameter::texts(routes().map(status)),
        parameter::bigints(routes().map(|route| route.max_attempts.into())),
        parameter::optional_instants(due),
        texts(|route| &route.resolved_email),
        texts(|route| &route.resolved_locale),
        parameter::texts(routes().map(classification)),
        parameter::instants(accepted().map(|(_, accepted_at)| accepted_at)),
        parameter::optional_instants(skipped),
    ])
}

/// The statuses of live routes, as a `text[]`.
pub(crate) fn live_statuses() -> Parameter {
    parameter::texts(RouteStatus::ALL.into_iter().filter(|status| status.is_live()).map(RouteStatus::as_str))
}

/// The columns that `codec::live_routes` reads, of a route `r` and its record `c`.
macro_rules! live_columns_text {
    () => {
        "r.notification_id, r.route_id, r.channel, r.updated_at, r.recipient_ref, r.resolved_email, r.resolved_locale,
            r.attempt_count, r.max_attempts, r.next_attempt_at, r.published_entry_id, c.producer, c.notification_type, c.payload_json,
            c.occurred_at, c.accepted_at, c.request_id, c.trace_id"
    };
}
pub(crate) use live_columns_text;

/// The two parts of the keys of routes, each as a `text[]`.
pub(crate) fn keys<'a>(keys: impl Iterator<Item = &'a RouteKey> + Clone) -> [Parameter; 2] {
    let notification_ids = parameter::texts(keys.clone().map(|key| key.notification_id.as_str()));
    [notification_ids, parameter::texts(keys.map(|key| key.route_id.as_str()))]
}

#[cfg(test)]
pub(crate) mod tests;
