//! Conditions that follow from a filter and that an index can serve.

use ambient::Timestamp;
use domain::query::{NotificationFilter, SearchName};
use state::json::Json;
use state::query::{Condition, Filter, Group, Instant, Test};

/// Conditions that every notification of the filter meets. Those within `$or` and `$not` are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Hints {
    /// The only ids that it can have.
    pub(super) ids: Option<Vec<String>>,
    /// Further conditions that it must meet.
    pub(super) filter: NotificationFilter,
}

impl Hints {
    pub(super) fn of(filter: &Filter) -> Self {
        let mut hints = Self::default();
        hints.add(filter);
        hints
    }

    fn add(&mut self, filter: &Filter) {
        filter.conditions.iter().for_each(|condition| self.add_condition(condition));
        for group in &filter.groups {
            if let Group::And(filters) = group {
                filters.iter().for_each(|filter| self.add(filter));
            }
        }
    }

    /// Adds a condition. Of two conditions on one name, one is enough; of two on a time, the narrower one
    /// counts.
    fn add_condition(&mut self, condition: &Condition) {
        let Some(name) = SearchName::parse(&condition.name) else { return };
        let filter = &mut self.filter;
        match (name, &condition.test) {
            (SearchName::AcceptedAt, Test::After(time)) => {
                filter.accepted_after = filter.accepted_after.max(timestamp(time))
            }
            (SearchName::AcceptedAt, Test::Before(time)) => {
                let known = filter.accepted_before.into_iter();
                filter.accepted_before = known.chain(timestamp(time)).min();
            }
            (SearchName::NotificationId, test) => self.ids = self.ids.take().or_else(|| texts(test)),
            (SearchName::Producer, test) => set(&mut filter.producer, text(test)),
            (SearchName::IdempotencyKey, test) => set(&mut filter.idempotency_key, text(test)),
            (SearchName::Recipient, test) => set(&mut filter.recipient, text(test)),
            (SearchName::RouteStatus, test) => {
                set(&mut filter.status, text(test).and_then(|text| text.parse().ok()));
            }
            (SearchName::ReceiptStatus, test) => {
                set(&mut filter.receipt, text(test).and_then(|text| text.parse().ok()));
            }
            _ => {}
        }
    }
}

fn set<T>(known: &mut Option<T>, found: Option<T>) {
    *known = known.take().or(found);
}

/// The only texts that pass.
fn texts(test: &Test) -> Option<Vec<String>> {
    let operands = match test {
        Test::Equal(operand) => std::slice::from_ref(operand),
        Test::In(operands) => operands,
        _ => return None,
    };
    Some(operands.iter().filter_map(Json::as_str).map(str::to_owned).collect())
}

fn text(test: &Test) -> Option<String> {
    let [text] = <[String; 1]>::try_from(texts(test)?).ok()?;
    Some(text)
}

/// The time; `None` for an instant before the year 1 or after 9999.
fn timestamp(time: &Instant) -> Option<Timestamp> {
    Timestamp::from_micros(time.as_micros()).ok()
}

#[cfg(test)]
mod tests {
    use domain::receipt::ReceiptStatus;
    use domain::route::RouteStatus;

    use super::super::names::SearchNames;
    use super::*;

    fn hints(filter: &str) -> Hints {
        Hints::of(
            &Filter::parse(filter.as_bytes(), &SearchNames)
                .unwrap_or_else(|error| panic!("{filter}: {error}")),
        )
    }

    #[test]
    fn what_must_hold_at_the_top_or_within_and_is_a_hint() {
        let found = hints(
            r#"{"producer": "p", "$and": [{"recipient": {"$in": ["u-1"]}, "route.status": "failed", "receipt.status": "bounced"},
                {"accepted_at": {"$after": "2026-01-01T00:00:00Z"}}, {"accepted_at": {"$after": "2026-01-02T00:00:00Z",
                "$before": "2026-01-04T00:00:00+01:00"}}, {"accepted_at": {"$before": "2026-01-05T00:00:00Z"}}]}"#,
        );
        let at = |text: &str| Some(text.parse().expect("a time"));
        let filter = NotificationFilter {
            producer: Some("p".into()),
            recipient: Some("u-1".into()),
            status: Some(RouteStatus::Failed),
            receipt: Some(ReceiptStatus::Bounced),
            accepted_after: at("2026-01-02T00:00:00Z"),
            accepted_before: at("2026-01-03T23:00:00Z"),
            ..NotificationFilter::default()
        };
        assert_eq!(found, Hints { ids: None, filter });
        assert_eq!(
            hints(r#"{"notification_id": {"$in": ["1-0", 7, "2-0"]}}"#).ids,
            Some(vec!["1-0".into(), "2-0".into()])
        );
        assert_eq!(hints(r#"{"notification_id": 7}"#).ids, Some(Vec::new()));
    }

    #[test]
    fn what_need_not_hold_is_no_hint() {
        for filter in [
            "{}",
            r#"{"$or": [{"producer": "p"}, {"recipient": "u"}]}"#,
            r#"{"$not": {"recipient": "u", "notification_id": "1-0"}}"#,
            r#"{"$or": [{"$and": [{"idempotency_key": "k"}]}]}"#,
            r#"{"recipient": {"$ne": "u"}, "producer": {"$in": ["p", "q"]}, "idempotency_key": {"$gt": "k"}}"#,
            r#"{"notification_id": {"$nin": ["1-0"]}, "route.status": "none", "payload.recipient": "u"}"#,
            r#"{"occurred_at": {"$after": "2026-01-01T00:00:00Z"}, "accepted_at": {"$after": "0001-01-01T00:00:00+01:00"}}"#,
        ] {
            assert_eq!(hints(filter), Hints::default(), "{filter}");
        }
    }
}
