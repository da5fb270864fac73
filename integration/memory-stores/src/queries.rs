//! Queries on the database in memory. They examine all rows, so that no page is cut short.

mod search;

use std::collections::HashMap;
use std::time::Duration;

use ambient::Timestamp;
use domain::dead_letter::recovery_hint;
use domain::document::Age;
use domain::ports::{Queries, StoreError};
use domain::query::{
    CauseCounts, Causes, ChannelStatus, Counted, DeadLetter, DeadLetterCause, DeadLetterFilter,
    DeadLetterPlace, IntentTrace, MAX_RECORDS, MalformedCause, MalformedFilter, MalformedPlace,
    MalformedSummary, Notification, NotificationFilter, NotificationSummary, Page, PageLimit, Route,
    RouteCounts, SearchFilter, SearchOutcome, StoreStatus, StoredMalformedIntent,
};
use domain::record::{IdempotencyKey, NotificationId, Record, RecordCursor};
use domain::route::{Channel, RouteStatus};

use super::database::{MemoryDatabase, Row, ServiceTables, malformed_key};
use super::lock;

const DAY: Duration = Duration::from_secs(24 * 3_600);

impl Queries for MemoryDatabase {
    async fn get_notification(&self, id: &NotificationId) -> Result<Option<Notification>, StoreError> {
        let tables = lock(&self.0);
        Ok(tables.records.get(id).map(|record| detail(&tables, record)))
    }

    async fn list_records(&self, ids: &[NotificationId]) -> Result<Vec<Record>, StoreError> {
        let tables = lock(&self.0);
        let records = ids.iter().take(MAX_RECORDS).filter_map(|id| tables.records.get(id));
        Ok(records.cloned().collect())
    }

    async fn list_notifications(
        &self,
        filter: &NotificationFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> Result<Page<NotificationSummary, RecordCursor>, StoreError> {
        let tables = lock(&self.0);
        let selected = tables.records.values().filter(|record| selects(filter, record, &tables));
        let items = selected.map(|record| summary(&tables, record)).collect();
        let place = |found: &RecordCursor| (found.accepted_at, found.notification_id.clone());
        Ok(page(items, after.map(place), limit.get(), NotificationSummary::place, place))
    }

    async fn search_notifications(
        &self,
        filter: &SearchFilter,
        after: Option<&RecordCursor>,
        limit: PageLimit,
    ) -> Result<SearchOutcome, StoreError> {
        Ok(search::search(&lock(&self.0), filter, after, limit))
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterPlace>,
        limit: PageLimit,
    ) -> Result<Page<DeadLetter, DeadLetterPlace>, StoreError> {
        let items = dead_letters(&lock(&self.0), filter);
        let place = |found: &DeadLetterPlace| (found.created_at, found.key.clone());
        Ok(page(items, after.map(place), limit.get(), DeadLetter::place, place))
    }

    async fn list_malformed_intents(
        &self,
        filter: &MalformedFilter,
        after: Option<&MalformedPlace>,
        limit: PageLimit,
    ) -> Result<Page<MalformedSummary, MalformedPlace>, StoreError> {
        let selected = malformed(&lock(&self.0)).into_iter().map(|row| row.summary).filter(|row| {
            is_or_any(filter.code.as_ref(), &row.failure_code)
                && is_or_any(filter.producer.as_ref(), &row.producer)
                && is_or_any(filter.idempotency_key.as_ref(), &row.idempotency_key)
                && within(row.recorded_at, filter.recorded_after, filter.recorded_before)
        });
        let place = |found: &MalformedPlace| {
            let key = &found.key;
            (found.recorded_at, [&key.stream, &key.entry_id, &key.fields_fingerprint].map(Clone::clone))
        };
        Ok(page(selected.collect(), after.map(place), limit.get(), MalformedSummary::place, place))
    }

    async fn get_malformed_intents(
        &self,
        stream: &str,
        entry_id: &str,
    ) -> Result<Vec<StoredMalformedIntent>, StoreError> {
        let mut rows = malformed(&lock(&self.0));
        rows.retain(|row| row.summary.key.stream == stream && row.summary.key.entry_id == entry_id);
        rows.sort_by_key(|row| std::cmp::Reverse(row.summary.recorded_at));
        Ok(rows)
    }

    async fn get_intent_trace(
        &self,
        stream: &str,
        scope: &IdempotencyKey,
    ) -> Result<IntentTrace, StoreError> {
        let tables = lock(&self.0);
        let rows = malformed(&tables).into_iter().map(|row| row.summary);
        let named = rows.filter(|row| row.producer == scope.producer && *row.idempotency_key == *scope.key);
        let record = tables.records.values().find(|record| record.idempotency_key == *scope);
        Ok(IntentTrace {
            checkpoint: tables.checkpoints.get(stream).map(|checkpoint| checkpoint.last_entry_id),
            malformed: named.max_by_key(|row| row.recorded_at),
            notification: record.map(|record| detail(&tables, record)),
        })
    }

    async fn count_dead_letters(&self) -> Result<Causes<DeadLetterCause>, StoreError> {
        let letters = dead_letters(&lock(&self.0), &DeadLetterFilter::default());
        let cause = |letter: DeadLetter| DeadLetterCause {
            channel: letter.channel,
            classification: letter.failure_classification,
        };
        Ok(causes(letters.into_iter().map(cause)))
    }

    async fn count_malformed_intents(&self) -> Result<Causes<MalformedCause>, StoreError> {
        let rows = malformed(&lock(&self.0));
        let cause = |row: StoredMalformedIntent| MalformedCause {
            code: row.summary.failure_code,
            producer: row.summary.producer,
        };
        Ok(causes(rows.into_iter().map(cause)))
    }

    async fn status(&self, stream: &str, now: Timestamp) -> Result<StoreStatus, StoreError> {
        let tables = lock(&self.0);
        let channel = |channel: Channel| {
            let due: Vec<Timestamp> = tables
                .due(now)
                .filter(|route| route.channel == channel)
                .map(|route| route.next_attempt_at)
                .collect();
            let failing = tables.routes.values();
            let failing = failing
                .filter(|row| row.route.channel == channel && row.status == RouteStatus::Failed)
                .count();
            ChannelStatus {
                channel,
                due: Counted::up_to_cap(due.len() as u64),
                oldest_due: due.into_iter().min().map(|due| Age::between(due, now)),
                failing: Counted::up_to_cap(failing as u64),
                waiting: None,
            }
        };
        let letters = dead_letters(&tables, &DeadLetterFilter::default());
        let letters = letters.into_iter().filter(|letter| letter.created_at >= now - DAY);
        let malformed = malformed(&tables).into_iter().map(|row| row.summary);
        let malformed = malformed.filter(|row| row.recorded_at >= now - DAY);
        Ok(StoreStatus {
            at: now,
            stream: stream.to_owned(),
            checkpoint: tables.checkpoints.get(stream).copied(),
            channels: Channel::ALL.map(channel).into(),
            dead_letters: counts(letters.map(|letter| letter.failure_classification)),
            malformed_intents: counts(malformed.map(|row| row.failure_code)),
            replicas: Vec::new(),
        })
    }
}

/// A page of the items after a place, newest first.
pub(super) fn page<T, P, K: Ord>(
    mut items: Vec<T>,
    after: Option<K>,
    limit: usize,
    place: impl Fn(&T) -> P,
    key: impl Fn(&P) -> K,
) -> Page<T, P> {
    items.retain(|item| after.as_ref().is_none_or(|after| key(&place(item)) < *after));
    items.sort_by_key(|item| std::cmp::Reverse(key(&place(item))));
    items.truncate(limit);
    let next = items.last().filter(|_| items.len() == limit).map(place);
    Page { items, next }
}

fn is_or_any(wanted: Option<&String>, value: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == value)
}

fn within(at: Timestamp, after: Option<Timestamp>, before: Option<Timestamp>) -> bool {
    after.is_none_or(|after| at >= after) && before.is_none_or(|before| at < before)
}

fn selects(filter: &NotificationFilter, record: &Record, tables: &ServiceTables) -> bool {
    let routes = || tables.routes_of(&record.notification_id);
    let is_to = |recipient: &String| {
        let address = format!("email:email:{recipient}");
        let is_address = || routes().any(|row| row.route.key.route_id == address);
        record.recipient_user_ids.contains(recipient) || !filter.users_only && is_address()
    };
    is_or_any(filter.producer.as_ref(), &record.idempotency_key.producer)
        && is_or_any(filter.notification_type.as_ref(), &record.content.notification_type)
        && is_or_any(filter.idempotency_key.as_ref(), &record.idempotency_key.key)
        && filter.status.is_none_or(|status| routes().any(|row| row.status == status))
        && filter.recipient.as_ref().is_none_or(is_to)
        && within(record.content.accepted_at, filter.accepted_after, filter.accepted_before)
}

fn summary(tables: &ServiceTables, record: &Record) -> NotificationSummary {
    let mut routes = RouteCounts::default();
    for row in tables.routes_of(&record.notification_id) {
        routes.add(row.status, 1);
    }
    NotificationSummary {
        notification_id: record.notification_id.clone(),
        notification_type: record.content.notification_type.clone(),
        producer: record.idempotency_key.producer.clone(),
        audience_kind: record.audience_kind.to_owned(),
        idempotency_key: record.idempotency_key.key.clone(),
        accepted_at: record.content.accepted_at,
        occurred_at: record.content.occurred_at,
        routes,
    }
}

fn detail(tables: &ServiceTables, record: &Record) -> Notification {
    let routes = tables.routes_of(&record.notification_id).map(|row| stored(tables, row));
    Notification::new(record.clone(), record.content.accepted_at, routes.collect())
}

fn stored(tables: &ServiceTables, row: &Row) -> Route {
    let route = &row.route;
    let letter = tables.dead_letters.get(&route.key);
    let created_at = route.content.accepted_at;
    Route {
        route_id: route.key.route_id.as_str().into(),
        route_number: 0,
        channel: route.channel,
        recipient_ref: route.recipient_ref.as_str().into(),
        status: row.status,
        attempt_count: route.attempt_count,
        max_attempts: route.max_attempts,
        next_attempt_at: row.status.is_live().then_some(route.next_attempt_at),
        resolved_email: route.resolved_email.as_str().into(),
        resolved_locale: route.resolved_locale.clone(),
        last_error_classification: row.last_error_classification.to_owned(),
        last_error_message: row.last_error_message.clone(),
        last_error_at: row.last_error_at,
        created_at,
        updated_at: route.version.updated_at(),
        published_at: row.published_at,
        dead_lettered_at: letter.map(|letter| letter.created_at),
        skipped_at: (row.status == RouteStatus::Skipped).then_some(created_at),
        published_entry_id: row.published_entry_id.clone(),
        recovery_hint: letter.map_or_else(String::new, |_| hint(row)),
        discarded: letter.and_then(|letter| letter.discarded.clone()),
        receipt: tables.receipts.get(&route.key).cloned(),
        explanation: String::new(),
    }
}

fn hint(row: &Row) -> String {
    recovery_hint(row.route.channel, row.last_error_classification).to_owned()
}

/// The dead letters that a filter selects, newest first.
pub(super) fn dead_letters(tables: &ServiceTables, filter: &DeadLetterFilter) -> Vec<DeadLetter> {
    let letter = |(key, letter): (_, &super::database::DeadLetterColumns)| {
        let row = tables.routes.get(key)?;
        Some(DeadLetter {
            key: row.route.key.clone(),
            notification_type: row.route.content.notification_type.clone(),
            channel: row.route.channel,
            recipient_ref: row.route.recipient_ref.clone(),
            final_attempt_count: row.route.attempt_count,
            max_attempts: row.route.max_attempts,
            failure_classification: row.last_error_classification.to_owned(),
            failure_message: row.last_error_message.clone(),
            recovery_hint: hint(row),
            created_at: letter.created_at,
            discarded: letter.discarded.clone(),
        })
    };
    let mut letters: Vec<DeadLetter> = tables.dead_letters.iter().filter_map(letter).collect();
    letters.retain(|letter| {
        filter.channel.is_none_or(|channel| channel == letter.channel)
            && is_or_any(filter.classification.as_ref(), &letter.failure_classification)
            && is_or_any(filter.notification_type.as_ref(), &letter.notification_type)
            && within(letter.created_at, filter.created_after, filter.created_before)
            && letter.discarded.is_some() == filter.discarded
    });
    letters.sort_by_key(|letter| std::cmp::Reverse((letter.created_at, letter.key.clone())));
    letters
}

fn malformed(tables: &ServiceTables) -> Vec<StoredMalformedIntent> {
    let stored = |row: &domain::malformed::MalformedIntent| StoredMalformedIntent {
        summary: MalformedSummary {
            key: malformed_key(row),
            notification_type: row.notification_type.clone().into(),
            producer: row.producer.clone(),
            idempotency_key: row.idempotency_key.clone().into(),
            failure_code: row.rejection.code.as_str().to_owned(),
            failure_message: row.rejection.message.clone().into(),
            recorded_at: row.recorded_at,
        },
        raw_fields: Some(row.raw_fields.text().into_owned()),
    };
    tables.malformed.values().map(stored).collect()
}

fn counts(causes: impl Iterator<Item = String>) -> CauseCounts {
    let mut counted: HashMap<String, u64> = HashMap::new();
    for cause in causes {
        *counted.entry(cause).or_default() += 1;
    }
    let mut counts: Vec<(String, u64)> = counted.into_iter().collect();
    counts.sort_by(|(one, rows), (other, more)| (more, one).cmp(&(rows, other)));
    CauseCounts { counts, capped: false }
}

fn causes<C: Ord + std::hash::Hash>(all: impl Iterator<Item = C>) -> Causes<C> {
    let mut counted: HashMap<C, u64> = HashMap::new();
    for cause in all {
        *counted.entry(cause).or_default() += 1;
    }
    let rows = counted.values().sum();
    Causes::new(counted.into_iter().collect(), rows)
}
