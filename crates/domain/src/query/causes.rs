//! Causes of dead letters and of malformed intents, among the rows that are counted.

use super::COUNT_CAP;
use crate::route::Channel;

/// The most causes that are listed; the most frequent are kept.
pub const MAX_CAUSES: usize = 100;

/// The cause of a dead letter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeadLetterCause {
    /// The channel of the route.
    pub channel: Channel,
    /// Classification of the last failure.
    pub classification: String,
}

/// The rule that an intent broke, and the producer of the intent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MalformedCause {
    /// The failure code.
    pub code: String,
    /// The producer as received; empty if it was not text of at most 255 bytes.
    pub producer: String,
}

/// The frequency of each cause among the newest rows of a list, of which at most [`COUNT_CAP`] are counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Causes<C> {
    /// Cause and count, the most frequent first, at most [`MAX_CAUSES`].
    pub counts: Vec<(C, u64)>,
    /// Number of rows that were counted.
    pub counted: u64,
}

impl<C: Ord> Causes<C> {
    /// Sorts and truncates the causes of `counted` rows, given in any order.
    pub fn new(mut counts: Vec<(C, u64)>, counted: u64) -> Self {
        counts.sort_by(|(one, rows), (other, more)| more.cmp(rows).then_with(|| one.cmp(other)));
        counts.truncate(MAX_CAUSES);
        Self { counts, counted }
    }

    /// True if there may be rows that were not counted.
    pub fn is_capped(&self) -> bool {
        self.counted >= COUNT_CAP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_causes_come_first_and_no_more_than_the_bound_are_kept() {
        let counts = (0..150).map(|n| (format!("{n:03}"), n / 2)).collect();
        let causes = Causes::new(counts, 5_550);
        assert_eq!(causes.counts.len(), MAX_CAUSES);
        let first: Vec<_> = causes.counts[..3].iter().map(|(cause, rows)| (cause.as_str(), *rows)).collect();
        assert_eq!(first, [("148", 74), ("149", 74), ("146", 73)]);
        assert!(!causes.is_capped() && Causes::<String>::new(Vec::new(), COUNT_CAP).is_capped());
    }
}
