//! L-12: a lease that is about to end, with its holder and a contender.

use lock::{Acquisition, Extension, LockManager, TableNames};
use tokio::task::JoinSet;

use crate::support::{Db, TTL, granted};

const TASKS: u64 = 8;
const ROUNDS: u64 = 10_000 / TASKS;

// L-12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_contender_never_both_get_a_lease_that_ends_as_they_ask() {
    let db = Db::new().await;
    // The server's own clock, which continues while the two race.
    let pool = db.pool_on_system_clock();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (pool, locks) = (pool.clone(), LockManager::new(pool.clone(), TableNames::default()));
        tasks.spawn(async move {
            let key = format!("key {task}");
            let mut held = granted(locks.try_acquire(&key, TTL).await);
            let (mut kept, mut taken) = (0, 0);
            for round in 0..ROUNDS {
                // The lease ends between now and 7 ms from now, tolerance included.
                let sql = format!(
                    "UPDATE locks SET expires_at_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1000 + {}
                     WHERE key = '{key}'",
                    (round * 5 + task) % 8
                );
                pool.session("age").await.expect("connects").execute_batch(&sql).await.expect("aged");
                let (extended, acquired) =
                    tokio::join!(locks.extend(&held.lock_id, TTL), locks.try_acquire(&key, TTL));
                let extended = extended.expect("no failure");
                match acquired.expect("no failure") {
                    Acquisition::Acquired(grant) => {
                        assert_eq!(extended, Extension::NotHeld, "two holders in round {round}");
                        assert_eq!(grant.fence, held.fence + 1);
                        held = grant;
                        taken += 1;
                    }
                    Acquisition::Locked if extended == Extension::NotHeld => {
                        // The lease ended between the two: no client has it.
                        held = loop {
                            if let Acquisition::Acquired(grant) = locks.try_acquire(&key, TTL).await.expect("no failure") {
                                break grant;
                            }
                        };
                    }
                    Acquisition::Locked => kept += 1,
                }
            }
            (kept, taken)
        });
    }
    let (kept, taken) =
        tasks.join_all().await.into_iter().fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
    assert!(kept > 0 && taken > 0, "both happen: {kept} kept, {taken} taken");
}
