//! The list of notifications: if an index has candidates for the search, they are checked by key; otherwise
//! the list is examined.

use std::collections::HashMap;

use domain::catalog::AudienceKind;
use domain::ports::StoreError;
use domain::query::{NotificationFilter, NotificationSummary, Page, PageLimit, RouteCounts};
use domain::receipt::ReceiptStatus;
use domain::record::{NotificationId, RecordCursor};
use domain::route::RouteStatus;
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session};
use serde_json::Value;
use tokio_postgres::Row;

use super::candidates::{self, Candidates, Range, user_list};
use super::{MAX_EXAMINED, examined, page};
use crate::codec::{column, corrupt, count, instant, name, small_count};
use crate::error::store_error;

/// The maximum number of candidates that one statement checks.
pub(super) const CHECKED_AT_ONCE: usize = 500;
/// The approximate maximum of routes that are counted for one page; a page with more of them ends early.
const MAX_PAGE_ROUTES: usize = 20_000;
/// The number of channels of one recipient.
const CHANNELS: usize = domain::route::Channel::ALL.len();

pub(super) async fn list(
    session: &Session,
    filter: &NotificationFilter,
    after: Option<&RecordCursor>,
    limit: PageLimit,
) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
    let range = Range::new(filter, after);
    let found = match candidates::find(session, filter, &range).await? {
        Some(candidates) => check(session, filter, candidates, limit.get()).await?,
        None => {
            let statement = listed(filter, &range, limit.get());
            let rows = session.query(statement).await.map_err(store_error)?;
            page(examined(&rows, parse)?, limit.get(), |found| found.place())
        }
    };
    let mut page = end_early(found);
    count_routes_of(session, &mut page.items).await?;
    Ok(page)
}

/// The candidates that match, in order, until the page is full.
async fn check(
    session: &Session,
    filter: &NotificationFilter,
    candidates: Candidates,
    limit: usize,
) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
    let mut items: Vec<NotificationSummary> = Vec::new();
    for chunk in candidates.places.chunks(CHECKED_AT_ONCE) {
        let rows = session.query(with_ids(filter, chunk)).await.map_err(store_error)?;
        let mut found = rows.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        newest_first(&mut found);
        items.extend(found);
        if items.len() >= limit {
            items.truncate(limit);
            let next = items.last().map(|last| last.place());
            return Ok(Page { items, next });
        }
    }
    Ok(Page { items, next: candidates.end })
}

pub(super) fn newest_first(found: &mut [NotificationSummary]) {
    let place = |found: &NotificationSummary| (found.accepted_at, found.notification_id.clone());
    found.sort_by_key(|found| std::cmp::Reverse(place(found)));
}

/// Cuts a page whose notifications have very many routes.
pub(super) fn end_early(
    page: Page<NotificationSummary, RecordCursor>,
) -> Page<NotificationSummary, RecordCursor> {
    let mut routes = 0;
    let fits = |found: &&NotificationSummary| {
        routes += usize::try_from(found.recipients.max(1)).unwrap_or(usize::MAX) * CHANNELS;
        routes <= MAX_PAGE_ROUTES
    };
    let kept = page.items.iter().take_while(fits).count().max(1);
    let is_cut = kept < page.items.len();
    let items: Vec<NotificationSummary> = page.items.into_iter().take(kept).collect();
    let next = if is_cut { items.last().map(NotificationSummary::place) } else { page.next };
    Page { items, next }
}

pub(super) async fn count_routes_of(
    session: &Session,
    items: &mut [NotificationSummary],
) -> Result<(), StoreError> {
    if items.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = items.iter().map(|item| item.notification_id.as_str()).collect();
    let mut counts: HashMap<String, RouteCounts> = HashMap::new();
    for row in session.query(route_counts(&ids)).await.map_err(store_error)? {
        let id: String = column(&row, "routes.notification_id", "")?;
        let status: RouteStatus = name(&row, "routes.status", &id)?;
        let routes = count(&row, "routes", &id)?;
        counts.entry(id).or_default().add(status, routes);
    }
    for item in items {
        item.routes = counts.get(item.notification_id.as_str()).copied().unwrap_or_default();
    }
    Ok(())
}

pub(super) fn parse(row: &Row) -> Result<NotificationSummary, StoreError> {
    let id: String = column(row, "records.notification_id", "")?;
    let first: Value = column(row, "first_recipients", &id)?;
    Ok(NotificationSummary {
        recipients: small_count(row, "recipients", &id)?.into(),
        first_recipient_user_ids: serde_json::from_value(first)
            .map_err(|error| corrupt("records.recipient_user_ids", &id, error.to_string()))?,
        notification_type: column(row, "records.notification_type", &id)?,
        producer: column(row, "records.producer", &id)?,
        audience_kind: column(row, "records.audience_kind", &id)?,
        idempotency_key: column(row, "records.idempotency_key", &id)?,
        accepted_at: instant(row, "records.accepted_at", &id)?,
        occurred_at: instant(row, "records.occurred_at", &id)?,
        routes: RouteCounts::default(),
        notification_id: NotificationId::from(id.clone()),
    })
}

/// The columns of a notification in a list, of a record `r`.
macro_rules! shown_text {
    () => {
        "r.notification_id, r.notification_type, r.producer, r.audience_kind, r.idempotency_key, r.accepted_at,
            r.occurred_at, jsonb_array_length(r.recipient_user_ids) AS recipients,
            jsonb_path_query_array(r.recipient_user_ids, '$[0 to 2]') AS first_recipients"
    };
}

/// Every condition of a filter on a record `r` except those of the range, with the parameters that
/// [`conditions`] returns. The keys of its receipts begin with its id and `/`, after which `0` is the next
/// byte. Unlike `EXISTS`, the planner never turns a subquery for one row into a scan of all rows of the
/// table.
macro_rules! matches_text {
    () => {
        "($1::text IS NULL OR r.producer = $1::text)
            AND ($2::text IS NULL OR r.notification_type = $2::text)
            AND ($3::text IS NULL OR r.idempotency_key = $3::text)
            AND (
                r.recipient_user_ids @> $4::text::jsonb
                OR r.audience_kind = $5::text AND coalesce((
                    SELECT true FROM routes t
                    WHERE t.notification_id = r.notification_id AND t.route_id = $6::text
                    LIMIT 1
                ), false)
            )
            AND ($7::text IS NULL OR coalesce((
                SELECT true FROM routes t
                WHERE t.notification_id = r.notification_id AND t.status = $7::text
                LIMIT 1
            ), false))
            AND ($8::text IS NULL OR coalesce((
                SELECT true FROM receipts d
                WHERE d.key > r.notification_id || '/' AND d.key < r.notification_id || '0' AND d.value ->> 'status' = $8::text
                LIMIT 1
            ), false))"
    };
}

pg::statements! {
    /// At most [`MAX_EXAMINED`] rows after a position. Returns the matching rows until the page is full, and
    /// the last one in any case.
    LIST = "notifications.list", plan ["records_listing_idx", "routes_pkey", "receipts_pkey"], concat!("
        SELECT *
        FROM (
            SELECT ", shown_text!(), ", r.rows, ", matches_text!(), " AS matches
            FROM (
                SELECT notification_id, notification_type, producer, audience_kind, idempotency_key, accepted_at,
                    occurred_at, recipient_user_ids,
                    row_number() OVER (ORDER BY accepted_at DESC, notification_id DESC) AS rows
                FROM records
                WHERE (accepted_at, notification_id) < ($9::timestamptz, $10::text)
                    AND accepted_at >= $11::timestamptz
                ORDER BY accepted_at DESC, notification_id DESC
                LIMIT $12::bigint
            ) AS r
        ) AS compared
        WHERE matches OR rows = $12::bigint
        ORDER BY accepted_at DESC, notification_id DESC
        LIMIT $13::bigint");

    /// The candidates that match.
    WITH_IDS = "notifications.with_ids", plan ["records_pkey", "routes_pkey", "receipts_pkey"], concat!("
        SELECT ", shown_text!(), " FROM records r
        WHERE r.notification_id = ANY ($9::text[]) AND ", matches_text!(), "
        LIMIT $10::bigint");

    /// The numbers of routes; the caller limits the notifications by their recipients.
    ROUTE_COUNTS = "notifications.count_routes", plan ["routes_pkey"], "
        SELECT notification_id, status, count(*) AS routes
        FROM (
            SELECT notification_id, status FROM routes WHERE notification_id = ANY ($1::text[]) LIMIT $2::bigint
        ) AS counted
        GROUP BY notification_id, status";
}

pub(super) fn listed(filter: &NotificationFilter, range: &Range, limit: usize) -> BoundStatement {
    let [producer, of_type, key, user, audience, route_id, status, receipt] = conditions(filter);
    LIST.bind([
        producer,
        of_type,
        key,
        user,
        audience,
        route_id,
        status,
        receipt,
        parameter::instant(range.after.accepted_at),
        parameter::text(range.after.notification_id.as_str()),
        parameter::instant(range.since),
        parameter::rows(MAX_EXAMINED),
        parameter::rows(limit),
    ])
}

pub(super) fn with_ids(filter: &NotificationFilter, places: &[RecordCursor]) -> BoundStatement {
    let [producer, of_type, key, user, audience, route_id, status, receipt] = conditions(filter);
    let ids = parameter::texts(places.iter().map(|place| place.notification_id.as_str()));
    let limit = parameter::rows(CHECKED_AT_ONCE);
    WITH_IDS.bind([producer, of_type, key, user, audience, route_id, status, receipt, ids, limit])
}

/// The first parameters of a statement with `matches_text`.
fn conditions(filter: &NotificationFilter) -> [Parameter; 8] {
    let recipient = filter.recipient.as_deref();
    // No administrator has an empty address.
    let address = recipient.filter(|_| !filter.users_only).unwrap_or_default();
    [
        parameter::optional_text(filter.producer.as_deref()),
        parameter::optional_text(filter.notification_type.as_deref()),
        parameter::optional_text(filter.idempotency_key.as_deref()),
        parameter::text(user_list(recipient)),
        parameter::text(AudienceKind::AdminEmail.as_str()),
        parameter::text(format!("email:email:{address}")),
        parameter::optional_text(filter.status.map(RouteStatus::as_str)),
        parameter::optional_text(filter.receipt.map(ReceiptStatus::as_str)),
    ]
}

pub(super) fn route_counts(ids: &[&str]) -> BoundStatement {
    ROUTE_COUNTS.bind([parameter::texts(ids), parameter::rows(2 * MAX_PAGE_ROUTES)])
}
