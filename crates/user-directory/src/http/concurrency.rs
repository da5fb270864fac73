//! The limit of concurrent requests, adapted to the number of failures.
//!
//! Every failure (an error status, a timeout, no connection) lowers the limit by one, and every full window
//! of responses raises it by one. If a directory serves 8 of 32 requests and refuses 24, the limit becomes 8.
//! If it refuses 2 % of the requests at any concurrency, the limit stays near the maximum. If it is down, the
//! limit becomes 1.

/// The current limit of requests in flight, from 1 to a configured maximum.
#[derive(Clone, Debug)]
pub(crate) struct Concurrency {
    limit: usize,
    max: usize,
    /// Responses since the limit last grew.
    answers: usize,
}

impl Concurrency {
    /// Starts at `max`, which is at least 1.
    pub(crate) fn new(max: usize) -> Self {
        Self { limit: max.max(1), max: max.max(1), answers: 0 }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn answered(&mut self) {
        self.answers += 1;
        if self.answers >= self.limit {
            self.answers = 0;
            self.limit = (self.limit + 1).min(self.max);
        }
    }

    pub(crate) fn failed(&mut self) {
        self.limit = (self.limit - 1).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_falls_to_what_is_served_and_no_lower_than_one() {
        let mut concurrency = Concurrency::new(32);
        (0..24).for_each(|_| concurrency.failed());
        assert_eq!(concurrency.limit(), 8);
        (0..24).for_each(|_| concurrency.failed());
        assert_eq!(concurrency.limit(), 1);
    }

    #[test]
    fn each_full_window_of_answers_gives_one_place_back_up_to_the_maximum() {
        let mut concurrency = Concurrency::new(3);
        (0..2).for_each(|_| concurrency.failed());
        concurrency.answered();
        assert_eq!(concurrency.limit(), 2);
        concurrency.answered();
        assert_eq!(concurrency.limit(), 2);
        concurrency.answered();
        assert_eq!(concurrency.limit(), 3);
        (0..9).for_each(|_| concurrency.answered());
        assert_eq!(concurrency.limit(), 3);
    }

    #[test]
    fn few_failures_that_do_not_depend_on_the_load_cost_little_concurrency() {
        let mut concurrency = Concurrency::new(32);
        let mut lowest = 32;
        for request in 1..=1_000 {
            if request % 50 == 0 {
                concurrency.failed()
            } else {
                concurrency.answered()
            }
            lowest = concurrency.limit().min(lowest);
        }
        assert!(lowest >= 30, "{lowest}");
    }
}
