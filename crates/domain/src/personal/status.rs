//! Personal data in the state and the activity of the service: names of producers that were never checked,
//! and messages of errors. Findings are made afterwards.

use super::{Document, Sight, mask_addresses};
use crate::query::{ActivityHistory, StoreStatus};
use crate::replica::WorkerReport;

impl Document for StoreStatus {
    fn hide(&mut self, sight: Sight) {
        self.holds.hide(sight);
        if sight == Sight::Masked {
            for producer in &mut self.recent.producers {
                mask_addresses(&mut producer.name);
            }
            for failure in self.recent.dead_letters.iter_mut().chain(&mut self.recent.producers) {
                mask_addresses(&mut failure.cause);
            }
            self.replicas.iter_mut().flat_map(|replica| &mut replica.workers).for_each(mask_worker);
        }
    }
}

fn mask_worker(worker: &mut WorkerReport) {
    let blocked = worker.blocked.as_mut().map(|blocked| &mut blocked.cause);
    let deferred = worker.deferred.as_mut().map(|deferred| &mut deferred.cause);
    let attempts = worker.attempts.as_mut().map(|attempts| &mut attempts.cause);
    [blocked, deferred, attempts].into_iter().flatten().for_each(mask_addresses);
}

impl Document for ActivityHistory {
    fn hide(&mut self, sight: Sight) {
        if sight == Sight::Masked {
            self.producers.iter_mut().for_each(|producer| mask_addresses(&mut producer.producer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{ActivityPeriod, ProducerActivity};

    #[test]
    fn a_viewer_sees_no_address_that_came_as_the_name_of_a_producer() {
        let producer = |name: &str| ProducerActivity {
            producer: name.to_owned(),
            accepted: 1,
            duplicates: 0,
            conflicts: 0,
            malformed: 1,
        };
        let history = ActivityHistory {
            period: ActivityPeriod::default(),
            step_seconds: 60,
            steps: Vec::new(),
            routes: Vec::new(),
            producers: vec![producer("a@example.com"), producer("game_master")],
        };
        let shown = history.clone().seen_by(Sight::Masked).producers;
        assert_eq!(shown, [producer("****"), producer("game_master")]);
        assert_eq!(history.clone().seen_by(Sight::Whole), history);
    }
}
