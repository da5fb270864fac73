//! The attempts of one call by notification type, for the table of activity and for the state of the channel.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::ports::Failed;
use domain::replica::{ActivityPart, PartActivity};
use domain::route::{Channel, LiveRoute};

use crate::health::Health;

/// The attempts at some routes.
#[derive(Default)]
pub(super) struct Tally<'a> {
    types: BTreeMap<&'a str, PartActivity>,
    cause: Option<String>,
}

impl<'a> Tally<'a> {
    /// Adds an entry that was appended `delay` after the acceptance of its intent; that of a resend has none.
    pub(super) fn published(&mut self, route: &'a LiveRoute, delay: Option<Duration>) {
        let counts = self.types.entry(&route.content.notification_type).or_default();
        counts.activity.published += 1;
        if let Some(delay) = delay {
            counts.delays.add(delay);
        }
    }

    /// Adds an attempt that failed.
    pub(super) fn failed(&mut self, route: &'a LiveRoute, failed: &Failed) {
        let counts = &mut self.types.entry(&route.content.notification_type).or_default().activity;
        *(if failed.retry_at.is_some() { &mut counts.failed } else { &mut counts.dead_lettered }) += 1;
        self.cause = Some(failed.message.clone());
    }

    /// Counts the attempts in the health of the publisher.
    pub(super) fn count(self, channel: Channel, health: &Health) {
        if self.types.is_empty() {
            return;
        }
        let activities = self.types.values().map(|part| part.activity);
        let (succeeded, failed) = activities.fold((0, 0), |(good, bad), activity| {
            (good + activity.published, bad + activity.failed + activity.dead_lettered)
        });
        health.count_attempts(succeeded, failed, self.cause.as_deref());
        let named = self.types.into_iter().map(|(notification_type, activity)| {
            (ActivityPart::Routes { channel, notification_type: notification_type.to_owned() }, activity)
        });
        health.count_parts(named.collect());
    }
}
