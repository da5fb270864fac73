//! The age of the data behind a response: a store that reads from a replica records it, and the front end
//! that responds reports it. Stores and front ends need no other knowledge of each other for it.

use std::cell::Cell;
use std::time::{Duration, Instant};

tokio::task_local! {
    static OLDEST: Cell<Option<Instant>>;
}

/// Runs `reading`, and returns its output with the age of the oldest data that it read. `None` if all of it
/// was current.
pub async fn measured<T>(reading: impl Future<Output = T>) -> (T, Option<Duration>) {
    OLDEST
        .scope(Cell::new(None), async {
            let output = reading.await;
            (output, OLDEST.with(Cell::get).map(|oldest| oldest.elapsed()))
        })
        .await
}

/// Records that data was read as it was at `as_of` or later. Does nothing outside of [`measured`].
pub fn read_as_of(as_of: Instant) {
    let noted = |oldest: &Cell<Option<Instant>>| {
        oldest.set(Some(oldest.get().map_or(as_of, |before| before.min(as_of))));
    };
    // There is nothing to report to outside of a request.
    OLDEST.try_with(noted).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_age_is_that_of_the_oldest_data_of_the_request() {
        let (now, earlier) = (Instant::now(), Instant::now() - Duration::from_secs(7));
        read_as_of(earlier);
        let (output, age) = measured(async {
            read_as_of(now);
            read_as_of(earlier);
            read_as_of(now);
            5
        })
        .await;
        assert_eq!(output, 5);
        assert!(age.is_some_and(|age| age >= Duration::from_secs(7)), "{age:?}");
        assert_eq!(measured(async {}).await, ((), None));
    }
}
