//! Counts of what the workers of this replica did since the last report. All workers add to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::ports::Activity;
use domain::replica::{ActivityPart, PartActivity};
use tokio::time::Instant;

/// The most producers without an accepted intent that are counted separately in [`NAMES_PERIOD`]. Further
/// ones are counted together, because a client can invent names.
const MAX_UNKNOWN_PRODUCERS: usize = 50;
/// The period of that bound.
const NAMES_PERIOD: Duration = Duration::from_secs(60);

/// The activity of the parts.
pub(crate) type Parts = BTreeMap<ActivityPart, PartActivity>;

/// The counts of this replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActivityCounts(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    all: Activity,
    parts: Parts,
    /// The producers without an accepted intent that are counted by themselves, and the time since which.
    names: BTreeSet<String>,
    names_since: Option<Instant>,
}

impl ActivityCounts {
    pub(crate) fn add(&self, activity: &Activity) {
        self.lock().all += *activity;
    }

    /// Adds the activity of parts. Their sum is not part of the activity of the replica.
    pub(crate) fn add_parts(&self, parts: Parts) {
        let mut counts = self.lock();
        for (part, activity) in parts {
            let part = counts.named(part, &activity.activity);
            *counts.parts.entry(part).or_default() += activity;
        }
    }

    /// Returns the counts since the last call, and resets them.
    pub(crate) fn take(&self) -> (Activity, Parts) {
        let mut counts = self.lock();
        (std::mem::take(&mut counts.all), std::mem::take(&mut counts.parts))
    }

    /// Nothing panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// The part under which the activity is counted. A producer with a valid intent is in the catalogue.
    fn named(&mut self, part: ActivityPart, activity: &Activity) -> ActivityPart {
        let ActivityPart::Producer(name) = part else { return part };
        if activity.accepted + activity.duplicates + activity.conflicts > 0 {
            return ActivityPart::Producer(name);
        }
        let now = Instant::now();
        if self.names_since.is_none_or(|since| now.duration_since(since) >= NAMES_PERIOD) {
            self.names_since = Some(now);
            self.names.clear();
        }
        let is_counted = self.names.contains(&name) || self.names.len() < MAX_UNKNOWN_PRODUCERS;
        if is_counted {
            self.names.insert(name.clone());
        }
        ActivityPart::Producer(if is_counted { name } else { String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn producer(name: &str, accepted: u64, malformed: u64) -> Parts {
        let activity = Activity { accepted, malformed, ..Activity::default() };
        let activity = PartActivity { activity, ..PartActivity::default() };
        BTreeMap::from([(ActivityPart::Producer(name.to_owned()), activity)])
    }

    #[tokio::test(start_paused = true)]
    async fn made_up_names_are_counted_together_beyond_the_bound_and_producers_of_the_catalogue_are_not() {
        let counts = ActivityCounts::default();
        for number in 0..200 {
            counts.add_parts(producer(&format!("made up {number}"), 0, 1));
        }
        counts.add_parts(producer("game_master", 1, 0));
        let (_, parts) = counts.take();
        assert_eq!(parts.len(), MAX_UNKNOWN_PRODUCERS + 2);
        let malformed = |name: &str| parts[&ActivityPart::Producer(name.to_owned())].activity.malformed;
        assert_eq!((malformed(""), malformed("made up 0"), malformed("game_master")), (150, 1, 0));
        tokio::time::advance(NAMES_PERIOD).await;
        counts.add_parts(producer("made up 199", 0, 1));
        assert_eq!(counts.take().1.keys().next(), Some(&ActivityPart::Producer("made up 199".to_owned())));
    }
}
