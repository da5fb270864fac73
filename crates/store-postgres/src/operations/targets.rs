//! The routes that an operator's change selects: by id, or page by page from an index in the order of a list.
//!
//! Dead letters come from their list. Published routes come from the list of records, the newest first: no
//! index has the times of publication, and a route is published after its acceptance, mostly at once. Live
//! routes come from the index of due routes, channel by channel, in the order in which they are due: those
//! that a hold keeps are the last. A route whose attempt fails moves on in that order and is found again; one
//! that is released moves back, and may be missed by a selection that has passed its place.

pub(crate) mod statements;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::operations::{
    Changeable, Group, LivePlace, MAX_ROUTES_PER_REQUEST, RouteChange, RouteFilter, Selection, Target,
    TargetPlace, Targets,
};
use domain::ports::StoreError;
use domain::query::{COUNT_CAP, Counted, DeadLetterFilter, Page};
use domain::record::NotificationId;
use domain::route::{Channel, RouteKey, RouteStatus, Version};
use pg::Session;
use tokio::time::Instant;
use tokio_postgres::Row;

use self::statements::{live, of_notification, published};
use super::statements::routes_named;
use crate::codec::{column, instant, loggable, name, route_key, small_count};
use crate::error::store_error;
use crate::queries::{DeadLetterRow, dead_letter_page, examined, page};

/// The number of routes that are read together while they are selected.
pub(super) const SELECTED_AT_ONCE: usize = 1_000;
/// The maximum number of pages that are read to select the routes of one request: each examines as many rows
/// as a page of a list.
const MAX_SELECTED_PAGES: usize = 50;
/// The maximum number of records that a page of published routes examines.
const MAX_EXAMINED_RECORDS: usize = 2_000;
/// The time before the beginning of a selection by publication from which on records are read: a route that
/// was published later after its acceptance is selected by its id or its notification.
const MAX_PUBLISH_DELAY: Duration = Duration::from_secs(86_400);
/// Greater than every id of a route.
const AFTER_ALL_ROUTES: &str = "\u{10FFFF}";

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
        (Changeable::Live | Changeable::Published, _) => {
            Some(Group::Type(column(row, "records.notification_type", &shown)?))
        }
    };
    let Some(group) = group else { return Ok((key, None)) };
    let target = Target {
        version: Version::read(instant(row, "routes.updated_at", &shown)?),
        channel: name(row, "routes.channel", &shown)?,
        attempt_count: small_count(row, "routes.attempt_count", &shown)?,
        replaces: replaces(row, &shown)?.filter(|_| status.is_live()),
        group,
        key: key.clone(),
    };
    Ok((key, Some(target)))
}

/// The entry that the next one of a live route replaces.
fn replaces(row: &Row, key: &str) -> Result<Option<String>, StoreError> {
    let entry_id: String = column(row, "routes.published_entry_id", key)?;
    Ok(Some(entry_id).filter(|id| !id.is_empty()))
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
        (Selection::Routes(filter), state @ (Changeable::Live | Changeable::Published)) => {
            match (&filter.notification_id, state) {
                (Some(id), _) => notification_page(session, change, (id, filter), after, limit).await,
                (None, Changeable::Published) => published_page(session, filter, after, limit).await,
                (None, _) => live_page(session, filter, after, limit).await,
            }
        }
        // Neither a list of ids nor a filter of routes in another state.
        _ => Ok(Page { items: Vec::new(), next: None }),
    }
}

fn dead_letter(DeadLetterRow { letter, version }: DeadLetterRow) -> Target {
    Target {
        key: letter.key,
        version,
        channel: letter.channel,
        attempt_count: letter.final_attempt_count,
        replaces: None,
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

/// Published routes, by the acceptance of their records.
async fn published_page(
    session: &Session,
    filter: &RouteFilter,
    after: Option<&TargetPlace>,
    limit: usize,
) -> Result<Page<Target, TargetPlace>, StoreError> {
    let rows = session.query(published(filter, after, limit)).await.map_err(store_error)?;
    let (mut items, mut last) = (Vec::with_capacity(rows.len()), None);
    for row in &rows {
        let id: String = column(row, "records.notification_id", "")?;
        let accepted_at = instant(row, "records.accepted_at", &id)?;
        let number: i64 = column(row, "rows", &id)?;
        let found: Option<String> = column(row, "routes.route_id", &id)?;
        if found.is_some() {
            items.push(target(row)?);
        }
        let route_id = found.unwrap_or_else(|| AFTER_ALL_ROUTES.to_owned());
        let key = RouteKey { notification_id: id.into(), route_id };
        last = Some((TargetPlace::Published(accepted_at, key), number));
    }
    let is_cut = |number| rows.len() == limit || number == MAX_EXAMINED_RECORDS as i64;
    let next = last.filter(|(_, number)| is_cut(*number)).map(|(place, _)| place);
    Ok(Page { items, next })
}

/// A target that is not a dead letter.
fn target(row: &Row) -> Result<Target, StoreError> {
    let key = route_key(row)?;
    let shown = loggable(&key);
    Ok(Target {
        version: Version::read(instant(row, "routes.updated_at", &shown)?),
        channel: name(row, "routes.channel", &shown)?,
        attempt_count: small_count(row, "routes.attempt_count", &shown)?,
        replaces: replaces(row, &shown)?,
        group: Group::Type(column(row, "records.notification_type", &shown)?),
        key,
    })
}
