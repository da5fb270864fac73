//! Acceptance with users in the service's own schema, compared with users of an HTTP service.
//!
//! Both have the same 500 users and cache a user that was found for the same time. The stream holds all
//! intents before the service starts. The first intents name every user, and the time counts from the arrival
//! of their entries: the cache is warm, and the election and the first reads are not included. In both, a
//! cached user expires within a run and is looked up again.

use std::time::Instant;

use anyhow::{Context, ensure};
use harness::ServiceBuilder;

use crate::figure::{Figure, ReportSection};
use crate::load::{self, ROUTES, USERS};
use crate::round::{BenchRound, Rounds, Unit, costs, rates};
use crate::testbed::Testbed;
use crate::watch::{at_least, confirm, wait_for_entries, wait_until_none_live};
use crate::{Scale, measure};

/// The lowest accepted ratio of the rate with the state directory to that with the HTTP directory.
const STATE_RATIO: f64 = 0.9;
/// Intents whose entries arrive before the time counts. They name every user at least once.
const WARM_UP: u32 = 1_000;
const _: () = assert!(WARM_UP >= USERS);
/// The intents of a smoke run: more than the service may append before the end of the warm-up is detected.
const SMOKE_INTENTS: u32 = 4_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Directory {
    Http,
    State,
}

impl Directory {
    fn configured(self, service: ServiceBuilder) -> ServiceBuilder {
        match self {
            Self::Http => service,
            Self::State => service.env("NOTIFICATION_USER_DIRECTORY", "state"),
        }
    }
}

/// Runs alternating rounds, each pair in the opposite order of the pair before.
pub(crate) async fn run(testbed: &mut Testbed, scale: Scale) -> anyhow::Result<ReportSection> {
    let intents = if scale.smoke { SMOKE_INTENTS } else { scale.intents };
    let (mut http, mut state) =
        (Rounds::new("HTTP directory", Unit::Intent), Rounds::new("state directory", Unit::Intent));
    let mut look_ups = Vec::new();
    for round in 1..=scale.rounds {
        println!("directory: round {round} of {}", scale.rounds);
        let mut order = [Directory::Http, Directory::State];
        if round % 2 == 0 {
            order.reverse();
        }
        for directory in order {
            let before = testbed.directory.requests();
            let measured = one_round(testbed, directory, intents).await?;
            let asked = testbed.directory.requests() - before;
            match directory {
                Directory::Http => {
                    ensure!(asked > 0, "the HTTP directory was not asked");
                    look_ups.push(asked as f64);
                    http.push(measured);
                }
                Directory::State => {
                    ensure!(asked == 0, "the HTTP directory was asked {asked} times beside the state one");
                    state.push(measured);
                }
            }
        }
    }
    let mut figures = vec![http.speed("rate")];
    figures.extend(http.cpu());
    figures.push(
        Figure::shown("HTTP directory: requests of a round", measure::median(look_ups.clone()), "requests")
            .of_rounds(look_ups),
    );
    figures.push(state.speed("rate"));
    figures.extend(state.cpu());
    figures.push(state.times("state directory: ratio to the HTTP directory", &http).at_least(STATE_RATIO));
    let both = [http, state];
    let charts = vec![
        rates("directory", "With each user directory", &both),
        costs("directory-cpu", "Processor time with each user directory", &both),
    ];
    let title = format!(
        "Directory: the stream's {intents} intents of {ROUTES} routes for {USERS} users, after {WARM_UP} that fill the cache; {} alternating \
         round(s), medians",
        scale.rounds
    );
    Ok(ReportSection { title, figures, charts })
}

/// One round, measured from the last entry of the warm-up to the last completion.
async fn one_round(testbed: &mut Testbed, directory: Directory, intents: u32) -> anyhow::Result<BenchRound> {
    let dsn = testbed.fresh().await?;
    let (mut redis, client) = (testbed.redis().await?, testbed.postgres(&dsn).await?);
    if directory == Directory::State {
        client.batch_execute(&users_sql()).await.context("could not insert users")?;
        client.batch_execute("VACUUM ANALYZE kv").await.context("could not vacuum")?;
    }
    load::preload(&mut redis, 0, WARM_UP + intents, ROUTES).await?;
    let service = directory.configured(testbed.service(&dsn)).start().await;
    let (warm, all) = (u64::from(WARM_UP * ROUTES), u64::from((WARM_UP + intents) * ROUTES));
    let appended = at_least(&mut redis, warm).await?;
    let (started, before) = (Instant::now(), testbed.cpu(service.pid()));
    ensure!(appended < all, "everything was appended before the warm-up was seen to be over");
    wait_for_entries(&mut redis, all).await?;
    wait_until_none_live(&client).await?;
    let (time, used) = (started.elapsed(), testbed.cpu(service.pid()).since(before));
    confirm(&client, WARM_UP + intents, ROUTES).await?;
    testbed.stop(service).await;
    let measured = u32::try_from(all - appended)? / ROUTES;
    Ok(BenchRound::of(measured, time, used))
}

/// The SQL that inserts the users of the HTTP stand-in.
fn users_sql() -> String {
    format!(
        "INSERT INTO kv (key, value)
         SELECT 'users/user-' || n, jsonb_build_object('email', 'user-' || n || '@example.com', 'preferred_language', 'en')
         FROM generate_series(0, {USERS} - 1) n"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use domain::intent::Recipients;

    use super::*;

    #[test]
    fn the_warm_up_names_every_user() {
        let named: BTreeSet<String> = (0..WARM_UP)
            .flat_map(|n| match load::draft_of(n, ROUTES).recipients {
                Recipients::Users(users) => users,
                Recipients::Administrators => Vec::new(),
            })
            .collect();
        assert_eq!(named, (0..USERS).map(|n| format!("user-{n}")).collect());
    }
}
