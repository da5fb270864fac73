//! The list of dead letters, for reading and for selecting those that an operator changes.

use ambient::Timestamp;
use domain::ports::StoreError;
use domain::query::{DeadLetter, DeadLetterFilter, DeadLetterPlace, Page, PageLimit};
use domain::route::{Channel, RouteStatus, Version};
use pg::{PgError, Session, bind};
use sea_query::{Expr, ExprTrait, JoinType, Order, Query, SelectStatement};
use tokio_postgres::Row;

use super::detail::discarded;
use super::{MAX_EXAMINED, equals_if_given, examined, page};
use crate::codec::{column, instant, loggable, name, route_key, small_count};
use crate::error::store_error;
use crate::schema::{DeadLetters, Input, Records, Routes};

/// A dead letter and the version of its route.
pub(crate) struct DeadLetterRow {
    pub(crate) letter: DeadLetter,
    pub(crate) version: Version,
}

pub(super) async fn list(
    session: &Session,
    filter: &DeadLetterFilter,
    after: Option<&DeadLetterPlace>,
    limit: PageLimit,
) -> Result<Page<DeadLetter, DeadLetterPlace>, StoreError> {
    let Page { items, next } = dead_letter_page(session, filter, after, limit.get()).await?;
    Ok(Page { items: items.into_iter().map(|row| row.letter).collect(), next })
}

/// At most `limit` dead letters after a position.
pub(crate) async fn dead_letter_page(
    session: &Session,
    filter: &DeadLetterFilter,
    after: Option<&DeadLetterPlace>,
    limit: usize,
) -> Result<Page<DeadLetterRow, DeadLetterPlace>, StoreError> {
    let rows = session.query(&listed(filter, after, limit)).await.map_err(store_error)?;
    Ok(page(examined(&rows, parse)?, limit, |row| row.letter.place()))
}

pub(super) async fn prepare_all(session: &Session) -> Result<(), PgError> {
    for discarded in [false, true] {
        let filter = DeadLetterFilter { discarded, ..DeadLetterFilter::default() };
        session.prepare(&listed(&filter, None, 1)).await?;
    }
    Ok(())
}

fn parse(row: &Row) -> Result<DeadLetterRow, StoreError> {
    let key = route_key(row)?;
    let shown = loggable(&key);
    let text = |place| column::<String>(row, place, &shown);
    let letter = DeadLetter {
        notification_type: text("records.notification_type")?,
        channel: name(row, "dead_letters.channel", &shown)?,
        recipient_ref: text("dead_letters.recipient_ref")?,
        final_attempt_count: small_count(row, "dead_letters.final_attempt_count", &shown)?,
        max_attempts: small_count(row, "dead_letters.max_attempts", &shown)?,
        failure_classification: text("dead_letters.failure_classification")?,
        failure_message: text("dead_letters.failure_message")?,
        recovery_hint: text("dead_letters.recovery_hint")?,
        created_at: instant(row, "dead_letters.created_at", &shown)?,
        discarded: discarded(row, &shown)?,
        key,
    };
    let version = Version::read(instant(row, "routes.updated_at", &shown)?);
    Ok(DeadLetterRow { letter, version })
}

/// One route by its whole key. In a plain join the planner may look it up by the notification alone, and read
/// all routes of an intent to a thousand users for each dead letter.
fn route_of_row() -> SelectStatement {
    let same = |column: Routes, of_row: DeadLetters| Expr::col(column).equals((Input::Table, of_row));
    Query::select()
        .columns([Routes::Status, Routes::UpdatedAt])
        .from(Routes::Table)
        .and_where(same(Routes::NotificationId, DeadLetters::NotificationId))
        .and_where(same(Routes::RouteId, DeadLetters::RouteId))
        .limit(1)
        .take()
}

/// At most [`MAX_EXAMINED`] rows of `dead_letters_open_idx` or `dead_letters_discarded_idx` after a position,
/// joined by their keys with record and route. Returns the matching rows until the page is full, and the last
/// one in any case. A row whose route is not a dead letter, because it was edited by hand, does not match.
pub(super) fn listed(
    filter: &DeadLetterFilter,
    after: Option<&DeadLetterPlace>,
    limit: usize,
) -> SelectStatement {
    use DeadLetters as D;
    let order = [D::CreatedAt, D::NotificationId, D::RouteId];
    let before = filter.created_before.unwrap_or(Timestamp::MAX);
    let (at, id, route_id) = match after {
        Some(place) if place.created_at < before => {
            (place.created_at, place.key.notification_id.as_str(), place.key.route_id.as_str())
        }
        _ => (before, "", ""),
    };
    let after = [bind::instant(at), bind::text(id), bind::text(route_id)];
    let is_discarded = Expr::col(D::DiscardedAt).is_not_null();
    let mut rows = Query::select();
    rows.column(sea_query::Asterisk)
        .expr_as(
            Expr::cust("row_number() OVER (ORDER BY created_at DESC, notification_id DESC, route_id DESC)"),
            Input::Rows,
        )
        .from(D::Table)
        .and_where(if filter.discarded { is_discarded } else { Expr::col(D::DiscardedAt).is_null() })
        .and_where(Expr::tuple(order.map(Expr::col)).lt(Expr::tuple(after)))
        .and_where(
            Expr::col(D::CreatedAt).gte(bind::instant(filter.created_after.unwrap_or(Timestamp::MIN))),
        );
    for column in order {
        rows.order_by(column, Order::Desc);
    }
    rows.limit(MAX_EXAMINED as u64);

    let of_row = |column: D| (Input::Table, column);
    let of_route = |column: Routes| (Routes::Table, column);
    let row_matches = || {
        equals_if_given(of_row(D::Channel), filter.channel.map(Channel::as_str))
            .and(equals_if_given(of_row(D::FailureClassification), filter.classification.as_deref()))
    };
    let matches = || {
        row_matches()
            .and(equals_if_given(
                (Records::Table, Records::NotificationType),
                filter.notification_type.as_deref(),
            ))
            .and(Expr::col(of_route(Routes::Status)).eq(bind::text(RouteStatus::DeadLetter.as_str())))
    };
    let is_last = || Expr::col((Input::Table, Input::Rows)).eq(bind::bigint(MAX_EXAMINED as i64));
    let mut select = Query::select();
    select
        .column((Input::Table, sea_query::Asterisk))
        .column((Records::Table, Records::NotificationType))
        .column(of_route(Routes::UpdatedAt))
        .expr_as(matches(), Input::Matches)
        .from_subquery(rows, Input::Table)
        .inner_join(
            Records::Table,
            Expr::col((Records::Table, Records::NotificationId)).equals(of_row(D::NotificationId)),
        )
        .join_lateral(JoinType::InnerJoin, route_of_row(), Routes::Table, Expr::cust("true"))
        // Before the joins: if few of many rows match, record and route of the others are not read.
        .and_where(row_matches().or(is_last()))
        .and_where(matches().or(is_last()));
    for column in order {
        select.order_by(of_row(column), Order::Desc);
    }
    select.limit(limit as u64).take()
}
