//! Recent activity of all replicas together, minute by minute.

use std::time::Duration;

use ambient::Timestamp;

use crate::replica::Activity;

/// The length of a history in minutes, including the present one.
pub const ACTIVITY_MINUTES: usize = 60;

/// The activity of all replicas in one minute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MinuteActivity {
    /// Beginning of the minute.
    pub minute: Timestamp,
    /// Sum over all replicas.
    pub activity: Activity,
}

/// The last minutes that had activity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActivityHistory {
    /// The beginning of the present minute, by the store's clock.
    pub present: Timestamp,
    /// The minutes that have a row, the oldest first.
    pub minutes: Vec<MinuteActivity>,
}

impl ActivityHistory {
    /// The last [`ACTIVITY_MINUTES`], the oldest first. Minutes without activity have zeros.
    pub fn series(&self) -> Vec<MinuteActivity> {
        let minutes = (0..ACTIVITY_MINUTES as u64).rev().map(|back| self.present - Duration::from_mins(back));
        let counted = |minute| self.minutes.iter().find(|counted| counted.minute == minute);
        let whole = |minute| MinuteActivity {
            minute,
            activity: counted(minute).map_or_else(Activity::default, |counted| counted.activity),
        };
        minutes.map(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Timestamp {
        Timestamp::from_millis(1_775_121_660_000 + number * 60_000).expect("in range")
    }

    #[test]
    fn a_minute_without_a_count_is_zero_and_what_is_older_than_an_hour_is_left_out() {
        let counted = |number, accepted| MinuteActivity {
            minute: minute(number),
            activity: Activity { accepted, ..Activity::default() },
        };
        let history = ActivityHistory {
            present: minute(60),
            minutes: vec![counted(0, 9), counted(1, 3), counted(60, 4)],
        };
        let series = history.series();
        assert_eq!(series.len(), ACTIVITY_MINUTES);
        assert_eq!((series[0], series[59]), (counted(1, 3), counted(60, 4)));
        assert!(series[1..59].iter().all(|quiet| quiet.activity == Activity::default()));
    }
}
