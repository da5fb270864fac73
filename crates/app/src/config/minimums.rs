//! Lower bounds of durations that depend on other durations.

use std::time::Duration;

use super::duration;
use super::knob::Knob;
use super::knobs::*;

/// The lower bound of a duration, computed from other durations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Minimum {
    /// The variable that must be long enough.
    pub(super) knob: &'static Knob,
    /// The durations that it must cover in sum, each with its factor.
    pub(super) terms: &'static [(u32, &'static Knob)],
    /// A constant that is added to the sum.
    pub(super) margin: Duration,
    /// The reason for the bound, shown to operators.
    pub(super) because: &'static str,
}

impl Minimum {
    /// The sum of the terms, each shown by `shown`, and of the margin: `A + 10 times B + 10s`.
    pub(super) fn sum(&self, shown: impl Fn(&Knob) -> String) -> String {
        let term = |&(times, knob): &(u32, &'static Knob)| match times {
            1 => shown(knob),
            times => format!("{times} times {}", shown(knob)),
        };
        let margin = (!self.margin.is_zero()).then(|| duration::format(self.margin));
        self.terms.iter().map(term).chain(margin).collect::<Vec<_>>().join(" + ")
    }
}

/// All lower bounds that depend on other durations.
pub(super) const MINIMUMS: &[Minimum] = &[
    Minimum {
        knob: &NOTIFICATION_ROUTE_LEASE_TTL,
        terms: &[(2, &NOTIFICATION_REDIS_OPERATION_TIMEOUT)],
        margin: Duration::ZERO,
        because: "a lease must outlast both winning it and appending under it",
    },
    Minimum {
        knob: &NOTIFICATION_ROUTE_BACKOFF_MAX,
        terms: &[(1, &NOTIFICATION_ROUTE_BACKOFF_MIN)],
        margin: Duration::ZERO,
        because: "the delay grows from the one to the other",
    },
    Minimum {
        knob: &NOTIFICATION_RECORD_RETENTION,
        terms: &[(1, &NOTIFICATION_IDEMPOTENCY_TTL)],
        margin: Duration::ZERO,
        because: "a key is remembered only while its record is kept",
    },
    Minimum {
        knob: &NOTIFICATION_PUBLISH_DEDUPE_TTL,
        terms: &[
            (1, &NOTIFICATION_ROUTE_LEASE_TTL),
            (1, &NOTIFICATION_POSTGRES_OPERATION_TIMEOUT),
            (10, &NOTIFICATION_REDIS_OPERATION_TIMEOUT),
        ],
        margin: Duration::ZERO,
        because: "the marker must exist when another replica tries the route, and while its completion is retried",
    },
    Minimum {
        knob: &NOTIFICATION_API_IDEMPOTENCY_LOCK_TTL,
        terms: &[(1, &NOTIFICATION_API_REQUEST_TIMEOUT)],
        margin: Duration::from_secs(10),
        because: "a key must stay with its request until the answer is stored",
    },
    Minimum {
        knob: &NOTIFICATION_OUTBOX_LEASE_TIMEOUT,
        terms: &[(10, &NOTIFICATION_REDIS_OPERATION_TIMEOUT)],
        margin: Duration::ZERO,
        because: "a claim must outlast several slow calls to Redis",
    },
    Minimum {
        knob: &NOTIFICATION_PUBLISH_DEDUPE_TTL,
        terms: &[(2, &NOTIFICATION_OUTBOX_LEASE_TIMEOUT)],
        margin: Duration::ZERO,
        because: "the marker of an event must exist when another relay claims it",
    },
    Minimum {
        knob: &NOTIFICATION_OUTBOX_RETRY_MAX_DELAY,
        terms: &[(1, &NOTIFICATION_OUTBOX_RETRY_BASE_DELAY)],
        margin: Duration::ZERO,
        because: "the delay grows from the one to the other",
    },
    Minimum {
        knob: &NOTIFICATION_SHUTDOWN_TIMEOUT,
        terms: &[(1, &NOTIFICATION_API_DRAIN_DELAY)],
        margin: Duration::ZERO,
        because: "the stop waits that long",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::knob::Takes;

    #[test]
    fn what_is_checked_against_each_other_is_durations() {
        let terms = MINIMUMS.iter().flat_map(|minimum| minimum.terms.iter().map(|(_, knob)| *knob));
        for knob in MINIMUMS.iter().map(|minimum| minimum.knob).chain(terms) {
            assert!(matches!(knob.takes, Takes::Duration(..)), "{}", knob.name);
        }
    }
}
