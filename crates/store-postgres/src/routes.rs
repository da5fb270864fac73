//! The state of routes: due routes (`due.rs`) and completions (`complete.rs`).

mod complete;
mod due;

use std::collections::HashMap;

use ambient::Timestamp;
use domain::outcome::Acceptance;
use domain::ports::{
    Completion, DueCursor, DueOrder, DuePage, Failed, Published, RouteStore, RowLocks, StoreError,
};
use domain::route::{Channel, NewRoute, RouteKey, RouteStatus, Start, Version};
use pg::sql::{any, insert_rows, unnest};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, Func, InsertStatement, Query, SelectStatement};

use crate::PgStore;
use crate::schema::{Input, Records, Routes};

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

pub(crate) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    due::prepare_all(session).await?;
    complete::prepare_all(session).await
}

pub(crate) fn insert(acceptances: &[&Acceptance]) -> InsertStatement {
    let routes = || acceptances.iter().flat_map(|acceptance| &acceptance.routes);
    let texts = |value: fn(&NewRoute) -> &str| unnest(bind::texts(routes().map(value)));
    // A batch is accepted at one time; each route repeats the time of its record.
    let accepted_at = || {
        let times = acceptances
            .iter()
            .flat_map(|acceptance| acceptance.routes.iter().map(|_| acceptance.record.content.accepted_at));
        unnest(bind::instants(times))
    };
    let due = routes().map(|route| match route.start {
        Start::Pending { due } => Some(due),
        Start::Skipped(_) => None,
    });
    let skipped = acceptances.iter().flat_map(|acceptance| {
        acceptance.routes.iter().map(|route| match route.start {
            Start::Pending { .. } => None,
            Start::Skipped(_) => Some(acceptance.record.content.accepted_at),
        })
    });
    let columns_and_values = [
        (Routes::NotificationId, texts(|route| route.key.notification_id.as_str())),
        (Routes::RouteId, texts(|route| &route.key.route_id)),
        (Routes::Channel, texts(|route| route.channel.as_str())),
        (Routes::RecipientRef, texts(|route| &route.recipient_ref)),
        (
            Routes::Status,
            texts(|route| match route.start {
                Start::Pending { .. } => RouteStatus::Pending.as_str(),
                Start::Skipped(_) => RouteStatus::Skipped.as_str(),
            }),
        ),
        (Routes::MaxAttempts, unnest(bind::bigints(routes().map(|route| route.max_attempts.into())))),
        (Routes::NextAttemptAt, unnest(bind::optional_instants(due))),
        (Routes::ResolvedEmail, texts(|route| &route.resolved_email)),
        (Routes::ResolvedLocale, texts(|route| &route.resolved_locale)),
        (
            Routes::LastErrorClassification,
            texts(|route| match route.start {
                Start::Pending { .. } => "",
                Start::Skipped(reason) => reason.as_str(),
            }),
        ),
        (Routes::CreatedAt, accepted_at()),
        (Routes::UpdatedAt, accepted_at()),
        (Routes::SkippedAt, unnest(bind::optional_instants(skipped))),
    ];
    insert_rows(Routes::Table, columns_and_values)
}

/// The columns that `codec::live_routes` reads; `route` is the table or subquery of the routes.
pub(crate) fn live_columns<T: sea_query::Iden + Copy + 'static>(select: &mut SelectStatement, route: T) {
    let of_route = [
        Routes::NotificationId,
        Routes::RouteId,
        Routes::Channel,
        Routes::UpdatedAt,
        Routes::RecipientRef,
        Routes::ResolvedEmail,
        Routes::ResolvedLocale,
        Routes::AttemptCount,
        Routes::MaxAttempts,
        Routes::NextAttemptAt,
    ];
    let of_record = [
        Records::NotificationType,
        Records::PayloadJson,
        Records::OccurredAt,
        Records::AcceptedAt,
        Records::RequestId,
        Records::TraceId,
    ];
    select
        .columns(of_route.map(|column| (route, column)))
        .columns(of_record.map(|column| (Records::Table, column)));
    select.inner_join(
        Records::Table,
        Expr::col((Records::Table, Records::NotificationId)).equals((route, Routes::NotificationId)),
    );
}

pub(crate) fn given_keys<'a>(keys: impl Iterator<Item = &'a RouteKey> + Clone) -> SelectStatement {
    Query::select()
        .expr_as(
            unnest(bind::texts(keys.clone().map(|key| key.notification_id.as_str()))),
            Input::NotificationId,
        )
        .expr_as(unnest(bind::texts(keys.map(|key| key.route_id.as_str()))), Input::RouteId)
        .take()
}

pub(crate) fn versioned<'a>(
    routes: impl Iterator<Item = (&'a RouteKey, Version)> + Clone,
) -> SelectStatement {
    let mut given = given_keys(routes.clone().map(|(key, _)| key));
    let expected = bind::instants(routes.map(|(_, version)| version.updated_at()));
    given.expr_as(unnest(expected), Input::ExpectedUpdatedAt);
    given
}

pub(crate) fn on_key() -> Expr {
    Expr::col((Routes::Table, Routes::NotificationId))
        .equals((Input::Table, Input::NotificationId))
        .and(Expr::col((Routes::Table, Routes::RouteId)).equals((Input::Table, Input::RouteId)))
}

/// The condition of a live route. It uses the status and not `next_attempt_at`: the planner, whose statistics
/// show that nothing is due, would otherwise read the whole index of due routes for every element of the
/// batch.
pub(crate) fn is_live() -> Expr {
    let live = RouteStatus::ALL.into_iter().filter(|status| status.is_live());
    Expr::col((Routes::Table, Routes::Status)).eq(any(bind::texts(live.map(RouteStatus::as_str))))
}

/// The new `updated_at` of a route that is changed at `now`: it rises even if the clock does not.
pub(crate) fn next_version(now: Timestamp) -> Expr {
    let raised = Expr::col((Routes::Table, Routes::UpdatedAt)).add(Expr::cust("interval '1 microsecond'"));
    Expr::expr(Func::greatest([bind::instant(now), raised]))
}

#[cfg(test)]
pub(crate) mod tests;
