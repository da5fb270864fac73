//! The routes that an operator's change selects: by id, or page by page from an index in the order of a list.
//!
//! Dead letters come from their list. Live routes come from the index of due routes, channel by channel, in
//! the order in which they are due: those that a hold keeps are the last. A route whose attempt fails moves
//! on in that order and is found again; one that is released moves back, and may be missed by a selection
//! that has passed its place.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ambient::Timestamp;
use domain::operations::{
    Changeable, Group, LivePlace, MAX_ROUTES_PER_REQUEST, RouteChange, RouteFilter, Selection, Target,
    TargetPlace, Targets,
};
use domain::ports::StoreError;
use domain::query::{COUNT_CAP, Counted, DeadLetterFilter, Page};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey, RouteStatus, Version};
use pg::parameter::{self, Parameter};
use pg::{BoundStatement, Session};
use tokio::time::Instant;
use tokio_postgres::Row;

use super::statements::routes_named;
use crate::codec::{column, instant, loggable, name, route_key};
use crate::error::store_error;
use crate::queries::{DeadLetterRow, MAX_EXAMINED, dead_letter_page, examined, page};

/// The number of routes that are read together while they are selected.
pub(super) const SELECTED_AT_ONCE: usize = 1_000;
/// The maximum number of pages that are read to select the routes of one request: each examines as many rows
/// as a page of a list.
const MAX_SELECTED_PAGES: usize = 50;

/// Selects the routes with these ids.
pub(super) async fn select_named(
    session: &Session,
    change: &RouteChange,
    ids: &[String],
) -> Result<Targets, StoreError> {
    let mut targets = Targets::default();
    let mut seen = HashSet::new();
    let ids: Vec<&String> =
        ids.iter().filter(|id| seen.insert(id.as_str())).take(MAX_ROUTES_PER_REQUEST).collect();
    for page in ids.chunks(SELECTED_AT_ONCE) {
        let keys: Vec<Option<RouteKey>> = page.iter().map(|id| id.parse().ok()).collect();
        let given: Vec<&RouteKey> = keys.iter().flatten().collect();
        let rows = session.query(routes_named(&given)).await.map_err(store_error)?;
        let found = rows.iter().map(|row| named(row, change));
        let mut found = found.collect::<Result<HashMap<_, _>, _>>()?;
        for (id, key) in page.iter().zip(&keys) {
            match key.as_ref().and_then(|key| found.remove(key)) {
                None => targets.unknown.push((*id).clone()),
                Some(Some(target)) => targets.targets.push(target),
                Some(None) => targets.unchanged += 1,
            }
        }
    }
    Ok(targets)
}

/// A route, as a target if `change` may be applied to it.
fn named(row: &Row, change: &RouteChange) -> Result<(RouteKey, Option<Target>), StoreError> {
    let key = route_key(row)?;
    let shown = loggable(&key);
    let status: RouteStatus = name(row, "routes.status", &shown)?;
    let cause: Option<String> = column(row, "dead_letters.failure_classification", &shown)?;
    let group = match (change.changes(), cause) {
        (state, _) if !state.includes(status) => None,
        (Changeable::DeadLetters, cause) => {
            let discarded = column(row, "discarded", &shown)?;
            cause.filter(|_| change.applies_to(discarded, true)).map(Group::Cause)
        }
        (Changeable::Live, _) => Some(Group::Type(column(row, "records.notification_type", &shown)?)),
    };
    let Some(group) = group else { return Ok((key, None)) };
    let target = Target {
        version: Version::read(instant(row, "routes.updated_at", &shown)?),
        channel: name(row, "routes.channel", &shown)?,
        group,
        key: key.clone(),
    };
    Ok((key, Some(target)))
}

/// Selects routes in the order of their list; those beyond the limit of one request are only counted. Starts
/// no page after `time`: the selection is then incomplete, and more routes remain than were counted.
pub(super) async fn select_listed(
    session: &Session,
    change: &RouteChange,
    selection: &Selection,
    time: Duration,
) -> Result<Targets, StoreError> {
    let begun = Instant::now();
    let (mut targets, mut after, mut seen) = (Targets::default(), None, HashSet::new());
    for _ in 0..MAX_SELECTED_PAGES {
        let page = target_page(session, change, selection, after.as_ref(), SELECTED_AT_ONCE).await?;
        // A route that moved on in its list is found again.
        for target in page.items.into_iter().filter(|target| seen.insert(target.key.clone())) {
            match targets.targets.len() {
                MAX_ROUTES_PER_REQUEST => targets.remaining.count += 1,
                _ => targets.targets.push(target),
            }
        }
        after = page.next;
        if after.is_none() || targets.remaining.count >= COUNT_CAP || begun.elapsed() >= time {
            break;
        }
    }
    targets.remaining = Counted { capped: after.is_some(), ..targets.remaining };
    Ok(targets)
}

/// A page of the routes that a filter selects. A place of another list is the beginning.
pub(super) async fn target_page(
    session: &Session,
    change: &RouteChange,
    selection: &Selection,
    after: Option<&TargetPlace>,
    limit: usize,
) -> Result<Page<Target, TargetPlace>, StoreError> {
    match (selection, change.changes()) {
        (Selection::DeadLetters(filter), Changeable::DeadLetters) => {
            let filter = DeadLetterFilter { discarded: false, ..filter.clone() };
            let after = match after {
                Some(TargetPlace::DeadLetter(place)) => Some(place),
                _ => None,
            };
            let Page { items, next } = dead_letter_page(session, &filter, after, limit).await?;
            let items = items.into_iter().map(dead_letter).collect();
            Ok(Page { items, next: next.map(TargetPlace::DeadLetter) })
        }
        (Selection::Routes(filter), Changeable::Live) => match &filter.notification_id {
            Some(id) => notification_page(session, change, (id, filter), after, limit).await,
            None => live_page(session, filter, after, limit).await,
        },
        // Neither a list of ids nor a filter of routes in another state.
        _ => Ok(Page { items: Vec::new(), next: None }),
    }
}

fn dead_letter(DeadLetterRow { letter, version }: DeadLetterRow) -> Target {
    Target {
        key: letter.key,
        version,
        channel: letter.channel,
        group: Group::Cause(letter.failure_classification),
    }
}

/// The routes of one notification.
async fn notification_page(
    session: &Session,
    change: &RouteChange,
    (id, filter): (&NotificationId, &RouteFilter),
    after: Option<&TargetPlace>,
    limit: usize,
) -> Result<Page<Target, TargetPlace>, StoreError> {
    let after = match after {
        Some(TargetPlace::OfNotification(route_id)) => route_id.as_str(),
        _ => "",
    };
    let rows = session.query(of_notification(change.changes(), id, filter, after, limit)).await;
    let items = rows.map_err(store_error)?.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let last = items.last().filter(|_| items.len() == limit);
    let next = last.map(|last| TargetPlace::OfNotification(last.key.route_id.clone()));
    Ok(Page { items, next })
}

/// Live routes of one channel; after the last page of a channel comes the next channel.
async fn live_page(
    session: &Session,
    filter: &RouteFilter,
    after: Option<&TargetPlace>,
    limit: usize,
) -> Result<Page<Target, TargetPlace>, StoreError> {
    let channels: Vec<Channel> = match filter.channel {
        Some(channel) => vec![channel],
        None => Channel::ALL.to_vec(),
    };
    let place = match after {
        Some(TargetPlace::Live(place)) => place.clone(),
        _ => LivePlace::beginning(channels[0]),
    };
    let rows = session.query(live(filter, &place, limit)).await.map_err(store_error)?;
    let found = examined(&rows, |row| {
        let target = target(row)?;
        let next_attempt_at = column(row, "next_attempt_at_text", &loggable(&target.key))?;
        Ok((target, next_attempt_at))
    })?;
    let found = page(found, limit, |(target, next_attempt_at): &(Target, String)| LivePlace {
        channel: place.channel,
        next_attempt_at: next_attempt_at.clone(),
        key: target.key.clone(),
    });
    let following = channels.iter().skip_while(|channel| **channel != place.channel).nth(1);
    let next = found.next.or_else(|| following.map(|channel| LivePlace::beginning(*channel)));
    let items = found.items.into_iter().map(|(target, _)| target).collect();
    Ok(Page { items, next: next.map(TargetPlace::Live) })
}

/// A target that is not a dead letter.
fn target(row: &Row) -> Result<Target, StoreError> {
    let key = route_key(row)?;
    let shown = loggable(&key);
    Ok(Target {
        version: Version::read(instant(row, "routes.updated_at", &shown)?),
        channel: name(row, "routes.channel", &shown)?,
        group: Group::Type(column(row, "records.notification_type", &shown)?),
        key,
    })
}

pg::statements! {
    /// Live routes of a channel after a position, cut from the index before anything is joined to it. Returns
    /// the matching ones until the page is full, and the last one that was examined in any case. The conditions
    /// on the route alone are evaluated before the join.
    LIVE = "operations.live", plan ["routes_due_idx", "records_pkey"], "
        SELECT * FROM (
            SELECT r.*, c.notification_type, r.of_route AND ($7::text IS NULL OR c.notification_type = $7::text)
                AND ($8::text IS NULL OR c.producer = $8::text) AS matches
            FROM (
                SELECT notification_id, route_id, channel, updated_at, next_attempt_at,
                    next_attempt_at::text AS next_attempt_at_text,
                    created_at >= $9::timestamptz AND created_at < $10::timestamptz
                        AND (cardinality($6::text[]) = 0 OR recipient_ref = ANY ($6::text[])) AS of_route,
                    row_number() OVER (ORDER BY next_attempt_at, notification_id, route_id) AS rows
                FROM routes
                WHERE channel = $1::text AND next_attempt_at IS NOT NULL
                    AND (next_attempt_at, notification_id, route_id) > ($2::text::timestamptz, $3::text, $4::text)
                ORDER BY next_attempt_at, notification_id, route_id
                LIMIT $5::bigint
            ) AS r
            JOIN records c ON c.notification_id = r.notification_id
            WHERE r.of_route OR r.rows = $5::bigint
        ) AS compared
        WHERE matches OR rows = $5::bigint
        ORDER BY next_attempt_at, notification_id, route_id
        LIMIT $11::bigint";

    /// The routes of a notification after a position.
    OF_NOTIFICATION = "operations.of_notification", plan ["routes_pkey", "records_pkey"], "
        SELECT r.notification_id, r.route_id, r.channel, r.updated_at, c.notification_type
        FROM routes r
        JOIN records c ON c.notification_id = r.notification_id
        WHERE r.notification_id = $1::text AND r.route_id > $2::text AND r.status = ANY ($3::text[])
            AND ($4::text IS NULL OR r.channel = $4::text)
            AND (cardinality($5::text[]) = 0 OR r.recipient_ref = ANY ($5::text[]))
            AND ($6::text IS NULL OR c.notification_type = $6::text) AND ($7::text IS NULL OR c.producer = $7::text)
            AND r.created_at >= $8::timestamptz AND r.created_at < $9::timestamptz
        ORDER BY r.route_id
        LIMIT $10::bigint";
}

pub(super) fn live(filter: &RouteFilter, place: &LivePlace, limit: usize) -> BoundStatement {
    let [recipients, of_type, producer, since, until] = conditions(filter);
    LIVE.bind([
        parameter::text(place.channel.as_str()),
        parameter::text(&*place.next_attempt_at),
        parameter::text(place.key.notification_id.as_str()),
        parameter::text(&*place.key.route_id),
        parameter::rows(MAX_EXAMINED),
        recipients,
        of_type,
        producer,
        since,
        until,
        parameter::rows(limit),
    ])
}

pub(super) fn of_notification(
    state: Changeable,
    id: &NotificationId,
    filter: &RouteFilter,
    after: &str,
    limit: usize,
) -> BoundStatement {
    let [recipients, of_type, producer, since, until] = conditions(filter);
    OF_NOTIFICATION.bind([
        parameter::text(id.as_str()),
        parameter::text(after),
        parameter::texts(state.statuses()),
        parameter::optional_text(filter.channel.map(Channel::as_str)),
        recipients,
        of_type,
        producer,
        since,
        until,
        parameter::rows(limit),
    ])
}

/// The conditions of a filter other than notification and channel: recipients, type, producer, both times.
fn conditions(filter: &RouteFilter) -> [Parameter; 5] {
    // An empty list selects every recipient.
    let recipients = filter.recipients();
    [
        parameter::texts(recipients.iter().map(String::as_str)),
        parameter::optional_text(filter.notification_type.as_deref()),
        parameter::optional_text(filter.producer.as_deref()),
        parameter::instant(filter.since.unwrap_or(Timestamp::MIN)),
        parameter::instant(filter.until.unwrap_or(Timestamp::MAX)),
    ]
}
